"""Stores the tokens of a coordinator: their names, roles and hashes, in a file of the state directory.

A token lets its bearer in; its secret is shown once, when it is made, and is not stored. `coordinatord token` changes
the file while the daemon runs, which then reloads it. Coordinators that share a store have a file each, and merge them.

A plain SHA-256 is enough, because the secrets are 256 random bits, which nobody can guess.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from msgspec import Meta
from msgspec.structs import asdict, replace

from coordinatord.protocol.access_token import AccessToken, Role
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.fields import Name
from coordinatord.protocol.schema import SchemaError, Strict, check, printable
from coordinatord.runtime.logs import fields
from coordinatord.runtime.pinned_tls import base32_of
from coordinatord.runtime.private_files import PrivateFileError, locked_directory, read_private, write_private

log = logging.getLogger(__name__)

TOKENS = "tokens.json"
"""The name of the file."""

TOKENS_MAX = 1_000
"""The limit of tokens: to compare a secret with all of them takes a third of a millisecond."""

TIME_MAX = 2.0**40
"""The limit of a date in seconds since 1970, far beyond what any clock shows."""

FIRST_NAMES = {"first-join": Role.JOIN, "first-admin": Role.ADMIN}
"""The tokens that the first start makes: one for nodes, and one for operators, which may also read.

They are never forgotten, even when revoked: by their names, later starts know that there was a first one.
"""

VERSION = 1
"""The version of the file's format."""


class TokenStoreError(OperationalError):
    """The file of tokens is missing, or a change of it is not possible."""

    exit_code = ExitCode.USAGE


class DamagedTokensError(TokenStoreError):
    """The file of tokens is damaged."""

    exit_code = ExitCode.DATA_ERROR


ALL_JOBS = "*"
"""The pattern of a token for all jobs."""


class KnownToken(Strict, frozen=True):
    """A token without its secret."""

    name: Name
    role: Role
    jobs: Name
    """The pattern of its job ids; `*` for all."""
    digest: Annotated[str, printable(64, least=64)]
    """SHA-256 of the secret, in hexadecimal digits."""
    made_at: Annotated[float, Meta(ge=0, le=TIME_MAX)]
    """When it was made, in seconds since 1970."""
    revoked_at: Annotated[float, Meta(ge=0, le=TIME_MAX)] | None = None
    """When it was revoked; None while it is valid."""

    def is_for(self, job: str) -> bool:
        """Whether it is for a job of this id, which is case-sensitive."""
        return fnmatchcase(job, self.jobs)

    @property
    def is_for_some_jobs(self) -> bool:
        """Whether it is not for all jobs."""
        return self.jobs != ALL_JOBS


_KnownTokens = Annotated[tuple[KnownToken, ...], Meta(max_length=TOKENS_MAX)]


class _TokenFile(Strict, frozen=True):
    version: Annotated[int, Meta(ge=VERSION, le=VERSION)]
    tokens: _KnownTokens


def new_secret() -> str:
    """Return a secret of 256 random bits."""
    return base32_of(secrets.token_bytes(32))


def new_tokens(pin: str, wanted: Mapping[str, Role]) -> dict[str, AccessToken]:
    """Return new tokens by name with these roles, which are valid once a `TokenStore` has them."""
    return {name: AccessToken(pin, role, new_secret()) for name, role in wanted.items()}


def pack_tokens(tokens: Iterable[KnownToken]) -> str:
    """Format tokens as the content of the file."""
    return f"{json.dumps({'version': VERSION, 'tokens': [asdict(token) for token in tokens]}, indent=1)}\n"


def unpack_tokens(text: str) -> tuple[KnownToken, ...]:
    """Parse the text of `pack_tokens`. Raises `ValueError`, `RecursionError` and `SchemaError`."""
    return check(json.loads(text), _TokenFile, "file").tokens


def valid_names(tokens: Iterable[KnownToken]) -> frozenset[str]:
    """Return the names of the tokens that are valid."""
    return frozenset(token.name for token in tokens if token.revoked_at is None)


def merge_tokens(shared: Iterable[KnownToken], own: Iterable[KnownToken]) -> tuple[KnownToken, ...]:
    """Merge the tokens of several coordinators; a token is revoked if any coordinator has revoked it.

    The hash identifies a token. If two tokens have the same name, the one in `own` gets another name.
    """
    tokens = {token.digest: token for token in shared}
    names = {token.name for token in tokens.values()}
    for token in own:
        known = tokens.get(token.digest)
        if known is not None:
            ends = [either.revoked_at for either in (known, token) if either.revoked_at is not None]
            tokens[token.digest] = replace(known, revoked_at=min(ends, default=None))
            continue
        name = token.name if token.name not in names else f"{token.name[:111]}-{token.digest[:16]}"  # 128 characters
        names.add(name)
        tokens[token.digest] = replace(token, name=name)
    return tuple(tokens.values())


def find_by_secret(tokens: tuple[KnownToken, ...], secret: str) -> KnownToken | None:
    """Return the token with this secret, even if revoked. The time is constant, and so tells nothing about guesses."""
    digest = _digest(secret)
    found = [token for token in tokens if hmac.compare_digest(token.digest, digest)]  # all are compared
    return found[0] if found else None


@dataclass(slots=True)
class TokenStore:
    """The tokens of one coordinator, in a file or only in memory."""

    directory: Path | None
    """The folder for secrets, with the file; None to keep tokens only in memory."""
    tokens: tuple[KnownToken, ...] = ()
    """All known tokens, including revoked ones."""
    _file_stamp: tuple[int, ...] = field(default=(), repr=False)
    """The inode, the time of change and the size of the file at the last read, to detect changes; empty before that."""
    _problem: str = field(default="", repr=False)
    """Why the last read failed; empty if it succeeded."""

    @property
    def path(self) -> Path:
        """The path of the file, if there is a directory."""
        assert self.directory is not None  # noqa: S101 - the callers know that there is one
        return self.directory / TOKENS

    def how_to_make(self, flags: str) -> str:
        """Return the advice to make a token with these flags: `make one where coordinatord runs, by ...`."""
        if self.directory is None:
            return "coordinatord runs without --state-dir, so take one of those that its start has left"
        state_dir = shlex.quote(f"{self.directory.parent.absolute()}")
        return f"make one where coordinatord runs, by coordinatord token new --state-dir {state_dir} {flags}"

    def refresh(self) -> None:
        """Read the file if it has changed. Raises `TokenStoreError` and `PrivateFileError`."""
        if self.directory is not None and (present := self._stat()) != self._file_stamp:
            self.tokens, self._file_stamp = self._read(), present

    def try_refresh(self) -> None:
        """Read the file if it has changed; on an error, log it and keep the old tokens.

        The next call retries, because the error may be temporary, such as a lack of descriptors.
        """
        try:
            self.refresh()
        except (TokenStoreError, PrivateFileError) as error:
            if self._problem != str(error):
                log.error("the tokens stay as they were: %s", error, extra=fields("tokens_unreadable"))  # noqa: TRY400
            self._problem = str(error)
        else:
            self._problem = ""

    def make(
        self, pin: str, wanted: Mapping[str, Role], jobs: str, hand_out: Callable[[Sequence[AccessToken]], None]
    ) -> None:
        """Make tokens with these names and roles for the jobs of a pattern, store their hashes, and hand them out.

        They are stored first, so that they are valid once handed out. If `hand_out` fails, they are removed again.
        Raises `TokenStoreError`, `PrivateFileError`, and the errors of `hand_out`.
        """
        tokens = new_tokens(pin, wanted)
        added = self.add(tokens, jobs)
        try:
            hand_out(tuple(tokens.values()))  # without the lock: it may wait for a reader
        except BaseException:
            # It may fail for the same reason, such as a full disk; the error of `hand_out` says more.
            with suppress(TokenStoreError, PrivateFileError), self._locked():
                self._write(*(token for token in self.tokens if token not in added))
            raise

    def add(self, tokens: Mapping[str, AccessToken], jobs: str) -> Sequence[KnownToken]:
        """Store the hashes of new tokens, by name, for the jobs of a pattern, and return the stored tokens.

        Raises `TokenStoreError` and `PrivateFileError`.
        """
        added = [KnownToken(name, token.role, jobs, _digest(token.secret), _now()) for name, token in tokens.items()]
        with self._locked():
            self._write(*self._retained_beside(tokens), *added)
        return added

    def _retained_beside(self, names: Collection[str]) -> list[KnownToken]:
        """Return the tokens that are kept when others with these names are added. Raises `TokenStoreError`."""
        for token in self.tokens:
            if token.name in names:
                raise TokenStoreError(f"there is a token of the name {token.name} already: choose another with --name")
        return _without_oldest_revoked(self.tokens, TOKENS_MAX - len(names))

    def revoke(self, name: str) -> None:
        """Revoke a token. Raises `TokenStoreError` and `PrivateFileError`."""
        self.refresh()
        self._named(name)  # checked before the lock, which would make the directory
        with self._locked():
            token = self._named(name)
            if token.revoked_at is None:
                self._write(*(replace(entry, revoked_at=_now()) if entry is token else entry for entry in self.tokens))

    def adopt(self, shared: Iterable[KnownToken]) -> None:
        """Merge the tokens and revocations of other coordinators into ours.

        Raises `TokenStoreError` and `PrivateFileError`.
        """
        shared = tuple(shared)
        self.refresh()
        if merge_tokens(shared, self.tokens) == self.tokens:
            return
        with self._locked():  # another process may have changed the file before
            self._write(*_without_oldest_revoked(merge_tokens(shared, self.tokens), TOKENS_MAX))

    def _named(self, name: str) -> KnownToken:
        """Return the token of a name. Raises `TokenStoreError`."""
        token = next((entry for entry in self.tokens if entry.name == name), None)
        if token is None:
            known = ", ".join(entry.name for entry in self.tokens if entry.revoked_at is None)
            raise TokenStoreError(f"there is no token of the name {name}; there are: {known or 'none'}")
        return token

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file against other processes within the context, and read it."""
        if self.directory is None:
            yield
            return
        with locked_directory(self.directory):
            self.refresh()
            yield

    def _write(self, *tokens: KnownToken) -> None:
        if self.directory is not None:
            write_private(self.path, pack_tokens(tokens))
            self._file_stamp = self._stat()
        self.tokens = tokens

    def _stat(self) -> tuple[int, ...]:
        try:
            found = self.path.stat()
        except OSError:
            return (0,)  # unlike the stamp before the first read
        return (found.st_ino, found.st_ctime_ns, found.st_size)  # this time changes with the mode, too

    def _read(self) -> tuple[KnownToken, ...]:
        text = read_private(self.path)
        if text is None and self.tokens:  # no command removes it
            raise TokenStoreError(f"{self.path} is missing: restore it, or make new tokens")
        if text is None:
            return ()
        try:
            return unpack_tokens(text)
        except (ValueError, RecursionError, SchemaError) as error:
            text = f"{self.path} is not as coordinatord writes it: {error}; restore it from a copy, or remove it and"
            raise DamagedTokensError(f"{text} make new tokens") from error


def _without_oldest_revoked(tokens: Iterable[KnownToken], most: int) -> list[KnownToken]:
    """Drop the oldest revoked tokens until at most `most` tokens are left. Raises `TokenStoreError`."""
    kept = list(tokens)
    while len(kept) > most:
        revoked = [token for token in kept if token.revoked_at is not None and token.name not in FIRST_NAMES]
        if not revoked:
            raise TokenStoreError(f"there are {TOKENS_MAX} tokens, the limit: revoke one")
        kept.remove(min(revoked, key=lambda token: token.revoked_at or 0.0))
    return kept


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _now() -> float:
    return datetime.now(UTC).timestamp()
