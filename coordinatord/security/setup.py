"""Makes the key, the certificate and the first tokens at the first start, and reloads them on request."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from coordinatord.protocol.access_token import AccessToken, Role
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.runtime.local_time import now
from coordinatord.runtime.logs import fields
from coordinatord.runtime.pinned_tls import server_context, why_unusable
from coordinatord.runtime.private_files import PrivateFileError, tokens_directory, write_private
from coordinatord.security.browser_sessions import BrowserSessions
from coordinatord.security.ephemeral_tokens import this_process
from coordinatord.security.gatekeeper import Gatekeeper
from coordinatord.security.identity import EphemeralIdentity, Identity, IdentityError, own_identity
from coordinatord.security.token_store import KnownToken, TokenStore, valid_names

log = logging.getLogger(__name__)

FOLDER = "security"
"""The folder in the state directory."""

HANDED_OUT = "tokens"
"""The file in it with the first tokens, if the user has no directory for them. It may be copied, and removed."""

PIN = "pin"
"""The file in it with the pin of an organisation's key: `coordinatord token` needs the pin for new tokens."""

FOR_NODES = "for nodes elsewhere make one that may only join, by coordinatord token new --output FILE"
"""The advice after the path of the first tokens, whose bearer may also stop and drain."""

FOR_SESSIONS = "sessions of browsers"
"""The purpose of the key that signs sessions. Coordinators with the same key derive the same one."""

FIRST_ROLES = (Role.JOIN, Role.ADMIN)
"""The roles of the first tokens: one for nodes, and one for operators, who may read as well."""


class NowhereError(OperationalError):
    """There is no directory for the first tokens."""

    exit_code = ExitCode.USAGE


class SecuritySettings(Struct, frozen=True):
    """The paths of the files; see `coordinatord --help`."""

    directory: Path | None
    """The folder in the state directory; None to store nothing."""
    certificate: Path | None = None
    key: Path | None = None
    client_authorities: Path | None = None


class Security:
    """The key, the certificate and the tokens of a coordinator."""

    def __init__(self, settings: SecuritySettings, store: TokenStore) -> None:
        self._settings = settings
        self._store = store
        self._passing_file: Path | None = None
        """The file of tokens that end with this process; None if they are durable."""
        self._passing_identity: EphemeralIdentity | None = None
        self._authorities = b""
        """The content of the file with the authorities of clients; empty without one."""
        self.gatekeeper: Gatekeeper
        self.context: ssl.SSLContext
        """The TLS context of new connections; replaced when the authorities of clients change."""
        self.pin = ""
        """The pin of the key in use."""
        self._certificate = ""
        """The organisation's certificate in use, in PEM; empty for our own."""

    @classmethod
    def open(cls, settings: SecuritySettings, environ: Mapping[str, str], clock: Callable[[], float]) -> Security:
        """Read the files; make missing ones.

        Raises `NowhereError`, `IdentityError`, `TokenStoreError` and `PrivateFileError`.
        """
        store = TokenStore(settings.directory)
        security = cls(settings, store)
        security._authorities, security.context = security._read_authorities(), security._context()
        security.pin = security._load_identity(security.context)
        security.gatekeeper = Gatekeeper(store, security._browsers(), clock)
        store.refresh()
        # `coordinatord token new` may have made other tokens before the first start.
        if not {_first(role) for role in FIRST_ROLES} & {token.name for token in store.tokens}:
            security._hand_out(environ)
        return security

    @property
    def tokens(self) -> tuple[KnownToken, ...]:
        """All known tokens."""
        return self._store.tokens

    @property
    def shows_given(self) -> bool:
        """Whether the certificate in use is an organisation's."""
        return self._settings.certificate is not None

    @property
    def valid_names(self) -> frozenset[str]:
        """The names of all valid tokens."""
        return valid_names(self._store.tokens)

    def reload(self) -> None:
        """Reload certificate, authorities and tokens, for new connections.

        An error is logged, and the old value stays in use.
        """
        before, authorities, context = self._certificate, self._authorities, self.context
        try:
            authorities = self._read_authorities()
            if authorities != self._authorities:
                context = self._context()
        except IdentityError as error:
            text = "clients have to show a certificate of the authorities that were there before: %s"
            log.error(text, error, extra=fields("client_authorities_unreadable"))  # noqa: TRY400
        try:
            pin = self._load_identity(context)
            if pin != self.pin:
                self.gatekeeper.browsers = self._browsers()
        except (IdentityError, PrivateFileError) as error:
            same = context is self.context
            kept = "certificate stays as it was" if same else "certificate and clients' authorities stay as they were"
            log.error("the %s: %s", kept, error, extra=fields("certificate_unreadable"))  # noqa: TRY400
        else:
            if context is not self.context:
                self.context, self._authorities = context, authorities
                text = "clients have to show a certificate of other authorities from now on"
                log.info(text, extra=fields("client_authorities_changed"))
            self._note_identity(pin, before)
        self.refresh()

    def _note_identity(self, pin: str, before: str) -> None:
        if pin != self.pin:
            text = "the key of the certificate is another one now: tokens of the old one no longer fit"
            log.warning(text, extra=fields("key_changed"))
        elif self._certificate != before:
            log.info("another certificate is shown from now on", extra=fields("certificate_changed"))
        self.pin = pin

    def refresh(self) -> None:
        """Reload the tokens if their file has changed."""
        self._store.try_refresh()

    def adopt(self, shared: Iterable[KnownToken]) -> None:
        """Add the tokens of other coordinators. Raises `TokenStoreError` and `PrivateFileError`."""
        self._store.adopt(shared)

    def close(self) -> None:
        """Remove the file of tokens that end with this process."""
        if self._passing_file is not None:
            self._passing_file.unlink(missing_ok=True)

    def _read_authorities(self) -> bytes:
        """Return the content of the file with the authorities of clients. Raises `IdentityError`."""
        path = self._settings.client_authorities
        try:
            return b"" if path is None else path.read_bytes()
        except OSError as error:
            raise IdentityError(f"the authorities {path} cannot be read: {error.strerror}") from error

    def _context(self) -> ssl.SSLContext:
        """Return a context with the authorities of clients, and without a certificate. Raises `IdentityError`.

        It has no TLS sessions of another context, so a client whose authority was removed cannot resume a session.
        """
        path = self._settings.client_authorities
        try:
            return server_context(None if path is None else str(path))
        except OSError as error:
            raise IdentityError(f"the authorities {path} cannot be used: {why_unusable(error)}") from error

    def _load_identity(self, context: ssl.SSLContext) -> str:
        """Load the certificate into a context; return the pin of its key.

        Raises `IdentityError` and `PrivateFileError`.
        """
        directory, identity = self._settings.directory, self._identity()
        pin = identity.load_into(context)
        if self.shows_given and isinstance(identity, Identity):
            with suppress(OSError, ValueError):  # it was read a moment ago
                self._certificate = identity.text
            if directory is not None and pin != self.pin:
                write_private(directory / PIN, f"{pin}\n")
        elif directory is not None:
            (directory / PIN).unlink(missing_ok=True)
        return pin

    def _identity(self) -> Identity | EphemeralIdentity:
        """Return the key and the certificate to use; make missing ones. Raises `PrivateFileError`."""
        settings = self._settings
        if settings.certificate is not None and settings.key is not None:
            return Identity(settings.certificate, settings.key)
        if settings.directory is not None:
            return own_identity(settings.directory)
        if self._passing_identity is None:
            self._passing_identity = EphemeralIdentity.make()
        return self._passing_identity

    def _browsers(self) -> BrowserSessions:
        """Return sessions signed with a key derived from ours. Raises `IdentityError` and `PrivateFileError`."""
        return BrowserSessions(self._identity().derived_key(FOR_SESSIONS), lambda: now().timestamp())

    def _hand_out(self, environ: Mapping[str, str]) -> None:
        """Make the first tokens, and write them where nodes and commands of this user find them.

        A service has no such directory, so the state directory gets the file.
        """
        first = [self._store.add(self.pin, role, _first(role)) for role in FIRST_ROLES]
        process = this_process() if self._settings.directory is None else None
        content = _file_of(first) + ("" if process is None else process.line)
        try:
            path = tokens_directory(environ) / self.pin
            write_private(path, content)
        except PrivateFileError as error:
            if self._settings.directory is None:
                raise NowhereError(
                    f"there is no place to leave the tokens in ({error}): give --state-dir, name a directory in"
                    " XDG_CONFIG_HOME, or give --insecure to let everybody in"
                ) from error
            path = self._settings.directory / HANDED_OUT
            write_private(path, content)
            level = logging.WARNING
            text = f"the first tokens are in %s: operators name it by --token-file; {FOR_NODES}"
        else:
            level = logging.INFO
            text = "the first tokens are in %s, where nodes and commands of this user find them"
            text += f"; {FOR_NODES}" if self._settings.directory is not None else ""
            self._passing_file = path if self._settings.directory is None else None
        log.log(level, text, path.absolute(), extra=fields("tokens_made"))


def _first(role: Role) -> str:
    """Return the name of the first token for a role."""
    return f"first-{role}"


def _file_of(tokens: list[AccessToken]) -> str:
    """Return the content of a file with tokens."""
    comment = f"# Tokens of the coordinatord on {socket.gethostname()}. Each of them lets its bearer in."
    return "\n".join([comment, *(token.text for token in tokens), ""])
