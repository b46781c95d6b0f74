"""The keys of one namespace in etcd, and their values. A namespace is all that coordinators with one store share.

A *generation* is a complete history, as commits. There is a second one while a migration writes it.
"""

from __future__ import annotations

from typing import Self

from msgspec import Struct, json

from coordinatord.protocol.schema import ERRORS
from coordinatord.store.etcd.requests import KeyValue
from coordinatord.store.interface import UnreadableStoreError

DIGITS = 16
"""The digits of a number in a key, padded with zeros so that keys sort like numbers."""

NAMES = frozenset({"leader", "standby", "about", "head", "pin", "tokens", "commits"})
"""The names that follow the prefix of a namespace in its keys. A namespace whose own prefix were `a/commits` would have
its keys among those of namespace `a`, so `EtcdLocation.parse` refuses it."""


class Keys:
    """The keys below a prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.leader = f"{prefix}/leader".encode()
        """The key that names the leader. It expires with the leader's lease, and its revision fences all writes."""
        self.standbys = f"{prefix}/standby/".encode()
        """The prefix of the keys that name the standbys. Each expires with its standby's lease."""
        self.about = f"{prefix}/about".encode()
        """The key of this namespace's `About`."""
        self.head = f"{prefix}/head".encode()
        """The key of this namespace's `Head`. Each commit writes it, so that a late duplicate has no effect."""
        self.pin = f"{prefix}/pin".encode()
        """The key of the hash of all coordinators' TLS key, or of a word instead. Only the first leader writes it."""
        self.tokens = f"{prefix}/tokens".encode()
        """The key of the token hashes of all coordinators. Each of them writes it."""

    def commits(self, generation: int) -> bytes:
        """Return the prefix of all keys of a generation."""
        return f"{self.prefix}/commits/{generation:0{DIGITS}d}/".encode()

    def commit(self, generation: int, number: int) -> bytes:
        """Return the key of a commit."""
        return self.commits(generation) + f"{number:0{DIGITS}d}".encode()

    def part(self, generation: int, number: int, part: int) -> bytes:
        """Return the key of a part of a commit that is too large for one value."""
        return self.commit(generation, number) + f"/{part:04d}".encode()


class _Value(Struct, frozen=True):
    """The value of a key, in JSON."""

    def packed(self) -> bytes:
        """Encode it."""
        return json.encode(self)

    @classmethod
    def unpack(cls, pair: KeyValue) -> Self:
        """Decode the value of a key. Raises `UnreadableStoreError`."""
        try:
            return json.decode(pair.value, type=cls)
        except ERRORS as error:
            key = pair.key.decode(errors="replace")
            raise UnreadableStoreError(f"key {key} is damaged ({error}): restore etcd from a snapshot") from error


class About(_Value, frozen=True):
    """The metadata of a namespace."""

    identity: str
    """A token that no other store has."""
    version: int
    """The version of the records, which is that of the tables in `migrations`."""
    generation: int
    """The number of the valid generation; others are incomplete, or of an older version."""


class Head(_Value, frozen=True):
    """The newest commit."""

    number: int
    digest: str
    """The SHA-256 of its value, by which a retry of the same commit is recognized. Where a generation has just
    begun, it is the SHA-256 of the value of `about`."""
