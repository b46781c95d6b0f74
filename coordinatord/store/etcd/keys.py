"""The keys of one namespace, and what each is for."""

from __future__ import annotations

from typing import Self

from msgspec import Struct, json

from coordinatord.protocol.schema import ERRORS
from coordinatord.store.etcd.requests import KeyValue
from coordinatord.store.interface import UnreadableStoreError

DIGITS = 16
"""Numbers have so many digits, so that keys sort as numbers do."""


NAMES = frozenset({"leader", "standby", "about", "head", "pin", "tokens", "commits"})
"""What may follow a prefix: no other namespace may begin so."""


class Keys(Struct, frozen=True):
    """The keys below a prefix."""

    prefix: str

    @property
    def leader(self) -> bytes:
        """Names the leader. It is deleted with the leader's lease, and its revision fences every commit."""
        return f"{self.prefix}/leader".encode()

    @property
    def standbys(self) -> bytes:
        """The beginning of the keys that name the standbys. Each is deleted with the lease of its standby."""
        return f"{self.prefix}/standby/".encode()

    @property
    def about(self) -> bytes:
        """Has the `About` of this namespace."""
        return f"{self.prefix}/about".encode()

    @property
    def head(self) -> bytes:
        """Names the newest commit. It is written with each, so that a commit that comes late and twice does nothing."""
        return f"{self.prefix}/head".encode()

    @property
    def pin(self) -> bytes:
        """Has the pin of the public key by which nodes know all coordinators here. Only the first leader writes it."""
        return f"{self.prefix}/pin".encode()

    @property
    def tokens(self) -> bytes:
        """Has the hashes of the tokens of all coordinators. Each of them writes it."""
        return f"{self.prefix}/tokens".encode()

    def commits(self, generation: int) -> bytes:
        """Return the beginning of all keys of a generation."""
        return f"{self.prefix}/commits/{generation:0{DIGITS}d}/".encode()

    def commit(self, generation: int, number: int) -> bytes:
        """Return the key of a commit."""
        return self.commits(generation) + f"{number:0{DIGITS}d}".encode()

    def part(self, generation: int, number: int, part: int) -> bytes:
        """Return the key of a part of a commit that is too large for one value."""
        return self.commit(generation, number) + f"/{part:04d}".encode()


class _Value(Struct, frozen=True):
    def packed(self) -> bytes:
        """Return it as the value of a key."""
        return json.encode(self)

    @classmethod
    def unpack(cls, pair: KeyValue) -> Self:
        """Read the value of a key. Raises `UnreadableStoreError`."""
        try:
            return json.decode(pair.value, type=cls)
        except ERRORS as error:
            key = pair.key.decode(errors="replace")
            raise UnreadableStoreError(f"key {key} is damaged ({error}): restore etcd from a snapshot") from error


class About(_Value, frozen=True):
    """The facts about a namespace."""

    identity: str
    """A token that no other store has."""
    version: int
    """The version of the records, as of the tables in `migrations`."""
    generation: int
    """The commits that count: others are being written, or are of an older version."""


class Head(_Value, frozen=True):
    """The newest commit."""

    number: int
    digest: str
    """The hash of its value, by which another try of the same commit is recognized."""
