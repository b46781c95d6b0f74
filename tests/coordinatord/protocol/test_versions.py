"""Versions of the protocol: a session of an older one has the fields of that version, no more and no less.

There is one version so far, so the tests invent two later ones.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum

import msgpack
import pytest

from coordinatord.protocol.codec import Dialect, VersionError, decode, encode
from coordinatord.protocol.messages import PROTOCOL_VERSION, Join, Observed, Phase, RefusalCode, Refused
from coordinatord.protocol.schema import SchemaError
from coordinatord.protocol.versions import ADDED, SUPPORTED, Added, later_than
from coordinatord.protocol.worker_ends import Killed
from tests.support.builders import a_join, an_observed
from tests.support.messages import as_map
from tests.support.releases import LATER_ADDED

FIRST, SECOND, THIRD = (Dialect(later_than(version, LATER_ADDED)) for version in (1, 2, 3))

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
    (field,) = [field for field in dataclasses.fields(added.message) if field.name == added.field]
    assert field.default is not dataclasses.MISSING, f"{added.field} has no default that means: not known"


def test_what_an_older_version_has_not_is_not_said_in_it_and_not_known_from_it() -> None:
    body = msgpack.unpackb(FIRST.packed(JOIN))
    assert body.pop("type") == "Join"
    assert "release" not in body
    assert "killed" not in body["observed"]
    assert FIRST.checked(body, Join) == dataclasses.replace(JOIN, release="", observed=an_observed())


def test_a_version_has_what_came_with_it_and_before_it() -> None:
    for dialect in (SECOND, THIRD):
        body = msgpack.unpackb(dialect.packed(JOIN))
        del body["type"]
        assert dialect.checked(body, Join) == JOIN


def test_a_version_is_read_strictly() -> None:
    body = as_map(JOIN)
    with pytest.raises(SchemaError, match="Join has unknown fields: 'release'"):
        FIRST.checked(body, Join)
    del body["release"]
    with pytest.raises(SchemaError, match="Join lacks release"):
        THIRD.checked(body, Join)


def test_a_value_that_came_later_is_none_in_an_older_version() -> None:
    body = as_map(an_observed()) | {"phase": "preparing"}
    assert THIRD.checked(body, Observed).phase is Phase.PREPARING
    with pytest.raises(SchemaError, match=r"Observed.phase must be one of idle, starting, .*, not 'preparing'"):
        SECOND.checked(body, Observed)


@pytest.mark.parametrize("version", [SUPPORTED[-1] - 1, PROTOCOL_VERSION + 1])
def test_other_versions_are_refused_with_the_versions_of_both_sides(version: int) -> None:
    body = {"type": "Join", **as_map(a_join()), "version": version}
    with pytest.raises(VersionError) as caught:
        decode(msgpack.packb(body), Join)
    ours = ", ".join(map(str, SUPPORTED))
    assert str(caught.value) == (
        f"the coordinator supports protocol {ours}, this node {version}: install the same release on all hosts"
    )


def test_a_refusal_is_the_same_in_all_versions() -> None:
    refused = Refused(RefusalCode.VERSION, "no", retry=False)
    assert {dialect.packed(refused) for dialect in (FIRST, SECOND, THIRD)} == {encode(refused)}
    assert [field.name for field in dataclasses.fields(Refused)] == ["code", "message", "retry"]
