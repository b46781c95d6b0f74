"""Versions of the protocol: a session of an older one has the fields of that version, no more.

There is one version so far, so the tests invent two later ones.
"""

from enum import StrEnum
from typing import Any

import pytest
from msgspec import msgpack
from msgspec.structs import fields, replace

from coordinatord.protocol.codec import VersionError, decode, encode, plain
from coordinatord.protocol.messages import PROTOCOL_VERSION, Join, Killed, RefusalCode, Refused
from coordinatord.protocol.schema import LeftOut
from coordinatord.protocol.versions import ADDED, SUPPORTED, Added, later_than
from tests.support.builders import a_join, an_observed
from tests.support.messages import as_map
from tests.support.releases import LATER_ADDED

FIRST, SECOND, THIRD = (later_than(version, LATER_ADDED) for version in (1, 2, 3))

KILLED = Killed((0, 1), 2, 30.0)

JOIN = a_join(release="1.2.3", observed=an_observed(killed=KILLED))


def test_at_most_three_versions_are_supported_and_the_present_one_comes_first() -> None:
    assert SUPPORTED[0] == PROTOCOL_VERSION
    assert list(SUPPORTED) == sorted(range(max(1, PROTOCOL_VERSION - 2), PROTOCOL_VERSION + 1), reverse=True)


@pytest.mark.parametrize("added", [*ADDED, *LATER_ADDED], ids=str)
def test_a_field_that_came_later_need_not_be_given(added: Added) -> None:
    if issubclass(added.message, StrEnum):
        assert added.field in list(added.message)
        return
    (field,) = [field for field in fields(added.message) if field.name == added.field]
    assert not field.required, f"{added.field} has no default that means: not known"


def test_an_older_version_is_sent_without_later_fields_and_they_have_their_defaults() -> None:
    body = plain(JOIN, FIRST)
    assert body["type"] == "Join"
    assert "release" not in body
    assert body["observed"].keys().isdisjoint({"killed", "type"})
    assert decode(msgpack.encode(body), Join) == replace(JOIN, release="", observed=an_observed())


@pytest.mark.parametrize("later", [SECOND, THIRD])
def test_a_version_has_what_came_with_it_and_before_it(later: LeftOut) -> None:
    assert msgpack.encode(plain(JOIN, later)) == encode(JOIN)


@pytest.mark.parametrize("version", [SUPPORTED[-1] - 1, PROTOCOL_VERSION + 1, -1])
@pytest.mark.parametrize("fields", [as_map(a_join()), {"colour": "blue"}], ids=["known", "unknown"])
def test_other_versions_are_refused_first_with_the_versions_of_both_sides(version: int, fields: dict[str, Any]) -> None:
    body = {"type": "Join", **fields, "version": version}
    with pytest.raises(VersionError) as caught:
        decode(msgpack.encode(body), Join)
    ours = ", ".join(map(str, SUPPORTED))
    assert str(caught.value) == (
        f"the coordinator supports protocol {ours}, this node {version}: install the same release on all hosts"
    )


def test_a_refusal_is_the_same_in_all_versions() -> None:
    refused = Refused(RefusalCode.VERSION, "no", retry=False)
    assert {msgpack.encode(plain(refused, later)) for later in (FIRST, SECOND, THIRD)} == {encode(refused)}
    assert Refused.__struct_fields__ == ("code", "message", "retry")
