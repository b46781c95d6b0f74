"""What etcd holds of a coordinator is checked like all that comes from outside."""

import pytest

from coordinatord.store.etcd.requests import KeyValue
from coordinatord.store.etcd.roster import Coordinatord
from coordinatord.store.interface import StoreError

ONE = Coordinatord("h1", "h1:29400", secure=True, since=1.7e9)


def test_a_coordinator_is_read_as_it_was_written() -> None:
    assert Coordinatord.unpack(KeyValue(b"key", ONE.packed(), 1, 1)) == ONE


@pytest.mark.parametrize("since", [b"Infinity", b"NaN", b"1e999", b'"long ago"', b"null"])
def test_a_time_that_is_none_is_an_error_that_names_the_key(since: bytes) -> None:
    value = ONE.packed().replace(b"1700000000.0", since)
    with pytest.raises(StoreError, match="key a/b names no coordinatord: remove it"):
        Coordinatord.unpack(KeyValue(b"a/b", value, 1, 1))
