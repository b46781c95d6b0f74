"""Which addresses of a cluster are understood, and which namespaces are apart from each other."""

import pytest

from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.store.etcd.keys import NAMES, Keys
from coordinatord.store.etcd.location import MEMBERS_MAX, EtcdAccess, EtcdLocation, EtcdLocationError


def test_members_namespace_and_encryption_are_read() -> None:
    place = EtcdLocation.parse("etcds://h1:2379,h2,[fd00::5]:4001/team/a/", EtcdAccess())
    assert place.members == (Endpoint("h1", 2379), Endpoint("h2", 2379), Endpoint("fd00::5", 4001))
    assert (place.prefix, place.tls) == ("team/a", True)
    assert str(place) == "etcds://h1:2379,h2:2379,[fd00::5]:4001/team/a"
    assert EtcdLocation.parse("etcd://h1").prefix == "coordinatord"


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
    with pytest.raises(EtcdLocationError, match="is no etcd://HOST"):
        EtcdLocation.parse(text)


def test_too_many_members_are_refused_as_that() -> None:
    members = ",".join(f"h{number}" for number in range(MEMBERS_MAX + 1))
    with pytest.raises(EtcdLocationError, match="17 members are too many: name at most 16"):
        EtcdLocation.parse(f"etcd://{members}/training")


def all_keys(prefix: str) -> list[bytes]:
    """Return every key of a namespace, and the beginnings of those that have more after it."""
    keys = Keys(prefix)
    return [keys.leader, keys.standbys, keys.about, keys.head, keys.pin, keys.tokens, keys.commits(1)]


def test_every_key_has_a_name_that_no_prefix_may_have_after_its_first_part() -> None:
    assert {key.removeprefix(b"a/").split(b"/")[0].decode() for key in all_keys("a")} == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("rest", ["", "/", "/deeper/still"])
def test_a_namespace_among_the_keys_of_another_is_refused(name: str, rest: str) -> None:
    with pytest.raises(EtcdLocationError, match=f"within another namespace, whose keys have the name '{name}'"):
        EtcdLocation.parse(f"etcd://h1/team/{name}{rest}")
    assert EtcdLocation.parse(f"etcd://h1/{name}").prefix == name, "no prefix is empty, so that one is in no other"


@pytest.mark.parametrize("inner", ["team/a", "team/a/b", "team//a", "team/standbys", "team1", "team/leader1"])
def test_other_namespaces_share_no_key(inner: str) -> None:
    outer, within = all_keys("team"), all_keys(EtcdLocation.parse(f"etcd://h1/{inner}").prefix)
    assert not set(outer) & set(within)
    beginnings = {b"team/" + key.split(b"/")[1] + b"/" for key in outer if key.endswith(b"/")}
    assert not [key for key in within if key.startswith(tuple(beginnings))]
