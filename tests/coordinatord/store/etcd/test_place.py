"""Which addresses of a cluster are understood."""

from __future__ import annotations

import pytest

from coordinatord.store.etcd.place import EtcdAccess, EtcdPlace, EtcdPlaceError


def test_members_namespace_and_encryption_are_read() -> None:
    place = EtcdPlace.parse("etcds://h1:2379,h2,[fd00::5]:4001/team/a/", EtcdAccess(user="u", password="secret"))  # noqa: S106
    assert place.members == (("h1", 2379), ("h2", 2379), ("fd00::5", 4001))
    assert (place.prefix, place.tls) == ("team/a", True)
    assert str(place) == "etcds://h1:2379,h2:2379,[fd00::5]:4001/team/a"
    assert "secret" not in repr(place)
    assert EtcdPlace.parse("etcd://h1").prefix == "coordinatord"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "etcd://",
        "http://h1:2379",
        "etcd://h1:0",
        "etcd://h1:70000",
        "etcd://user@h1",
        "etcd://h1/a b",
        "etcd://h1,,h2",
    ],
)
def test_what_names_no_cluster_is_refused(text: str) -> None:
    with pytest.raises(EtcdPlaceError, match="is no etcd://HOST"):
        EtcdPlace.parse(text)
