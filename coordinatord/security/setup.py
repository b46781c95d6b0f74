"""Makes the key, the certificate and the first tokens at the first start, and reloads them on SIGHUP.

`Security` has all by which a server shows who it is, and decides who is let in. *Authorities* are the CA certificates
by which clients' certificates are checked, if an organisation demands these.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping
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
from coordinatord.security.ephemeral_tokens import write_ephemeral
from coordinatord.security.gatekeeper import Gatekeeper
from coordinatord.security.identity import Identity, IdentityError, ephemeral_identity, own_identity
from coordinatord.security.token_store import TokenStore

log = logging.getLogger(__name__)

FOLDER = "security"
"""The name of the folder in the state directory with all files of this package."""

FIRST_TOKENS = "tokens"
"""The file in this folder with the first tokens, if the user has no directory for them. It may be copied and
removed."""

PIN = "pin"
"""The file in this folder with the pin of an organisation's key, which `coordinatord token` needs for new tokens."""

NODES_ADVICE = "for nodes elsewhere make one that may only join, by coordinatord token new --output FILE"
"""The advice after the path of the first tokens, since one of them may also stop and drain."""

SESSION_KEY = "sessions of browsers"
"""The purpose of the derived key that signs sessions."""

FIRST_ROLES = (Role.JOIN, Role.ADMIN)
"""The roles of the first tokens: one for nodes, and one for operators, which may also read."""


class NoTokensDirectoryError(OperationalError):
    """The user has no directory for the first tokens, and there is no state directory."""

    exit_code = ExitCode.USAGE


class SecuritySettings(Struct, frozen=True):
    """The paths of the files, as in `ServeConfig`."""

    directory: Path | None
    """`FOLDER` in the state directory; None to store nothing."""
    certificate: Path | None = None
    key: Path | None = None
    client_authorities: Path | None = None


class Security:
    """The key, the certificate and the tokens of a coordinator."""

    def __init__(self, settings: SecuritySettings, store: TokenStore) -> None:
        self._settings = settings
        self.token_store = store
        self._ephemeral_file: tuple[Path, int] | None = None
        """The file of tokens that end with this process, and the descriptor that locks it; None if they are durable."""
        self._ephemeral_identity: Identity | None = None
        """The key and certificate that end with this process; None if they are durable."""
        self._authorities = b""
        """The content of `client_authorities`; empty without the file."""
        self.gatekeeper: Gatekeeper
        self.context: ssl.SSLContext
        """The TLS context of new connections; a reload of other authorities replaces it."""
        self.pin = ""
        """The pin of the key in use: its hash, which tokens have, so that clients know this coordinator by it."""
        self._certificate = ""
        """The organisation's certificate in use, in PEM; empty for our own."""

    @classmethod
    def open(cls, settings: SecuritySettings, environ: Mapping[str, str], clock: Callable[[], float]) -> Security:
        """Read the files, and make missing ones; `clock` returns seconds that only grow.

        Raises `NoTokensDirectoryError`, `IdentityError`, `TokenStoreError` and `PrivateFileError`.
        """
        store = TokenStore(settings.directory)
        security = cls(settings, store)
        security._authorities, security.context = security._read_authorities(), security._context()
        security.pin = security._load_identity(security.context)
        security.gatekeeper = Gatekeeper(store, security._browsers(), clock)
        store.refresh()
        # There may be other tokens: `coordinatord token new` works before the first start.
        if not {_first(role) for role in FIRST_ROLES} & {token.name for token in store.tokens}:
            security._make_first_tokens(environ)
        return security

    @property
    def has_given_certificate(self) -> bool:
        """Whether the certificate in use is an organisation's."""
        return self._settings.certificate is not None

    def reload(self) -> None:
        """Reload certificate, authorities and tokens, for new connections.

        An error is logged, and the old value stays in use. Other authorities need a new TLS context, which becomes
        valid only with a certificate. So if that cannot be loaded, the old authorities stay as well.
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
            self._log_identity(pin, before)
            self.pin = pin
        self.token_store.try_refresh()

    def _log_identity(self, pin: str, before: str) -> None:
        """Log that the key with this pin is another one than that in use, or that the certificate is not `before`."""
        if pin != self.pin:
            text = "the key of the certificate is another one now: tokens of the old one no longer fit"
            log.warning(text, extra=fields("key_changed"))
        elif self._certificate != before:
            log.info("another certificate is shown from now on", extra=fields("certificate_changed"))

    def close(self) -> None:
        """Remove the file of tokens that end with this process."""
        if self._ephemeral_file is not None:
            path, lock = self._ephemeral_file
            path.unlink(missing_ok=True)
            os.close(lock)

    def _read_authorities(self) -> bytes:
        """Return the content of `client_authorities`. Raises `IdentityError`."""
        path = self._settings.client_authorities
        try:
            return b"" if path is None else path.read_bytes()
        except OSError as error:
            raise IdentityError(f"the authorities {path} cannot be read: {error.strerror}") from error

    def _context(self) -> ssl.SSLContext:
        """Return a new TLS context with the authorities, and without a certificate. Raises `IdentityError`.

        It has no old TLS sessions, so that a client of a removed authority cannot resume one.
        """
        path = self._settings.client_authorities
        try:
            return server_context(None if path is None else str(path))
        except OSError as error:
            raise IdentityError(f"the authorities {path} cannot be used: {why_unusable(error)}") from error

    def _load_identity(self, context: ssl.SSLContext) -> str:
        """Load the certificate; return the pin of its key. Raises `IdentityError` and `PrivateFileError`."""
        directory, identity = self._settings.directory, self._identity()
        pin = identity.load_into(context)
        if self.has_given_certificate:
            with suppress(OSError, ValueError):  # it was valid a moment ago
                self._certificate = identity.text
            if directory is not None and pin != self.pin:
                write_private(directory / PIN, f"{pin}\n")
        elif directory is not None:
            (directory / PIN).unlink(missing_ok=True)
        return pin

    def _identity(self) -> Identity:
        """Return the key and the certificate to use; make missing ones. Raises `PrivateFileError`."""
        settings = self._settings
        if settings.certificate is not None and settings.key is not None:
            return Identity(settings.certificate, settings.key)
        if settings.directory is not None:
            return own_identity(settings.directory)
        if self._ephemeral_identity is None:
            self._ephemeral_identity = ephemeral_identity()
        return self._ephemeral_identity

    def _browsers(self) -> BrowserSessions:
        """Return sessions, signed with a key derived from ours. Raises `IdentityError` and `PrivateFileError`."""
        return BrowserSessions(self._identity().derived_key(SESSION_KEY), lambda: now().timestamp())

    def _make_first_tokens(self, environ: Mapping[str, str]) -> None:
        """Make the first tokens, and write them to this user's directory, where nodes and commands find them.

        A service's user has no such directory, so the file is in the state directory then.
        """
        first = [self.token_store.add(self.pin, role, _first(role)) for role in FIRST_ROLES]
        content = _file_of(first)
        try:
            path = tokens_directory(environ) / self.pin
            if self._settings.directory is None:
                self._ephemeral_file = path, write_ephemeral(path, content)
            else:
                write_private(path, content)
        except PrivateFileError as error:
            if self._settings.directory is None:
                raise NoTokensDirectoryError(
                    f"there is no place to leave the tokens in ({error}): give --state-dir, name a directory in"
                    " XDG_CONFIG_HOME, or give --insecure to let everybody in"
                ) from error
            path = self._settings.directory / FIRST_TOKENS
            write_private(path, content)
            level = logging.WARNING
            text = f"the first tokens are in %s: operators name it by --token-file; {NODES_ADVICE}"
        else:
            level = logging.INFO
            text = "the first tokens are in %s, where nodes and commands of this user find them"
            text += f"; {NODES_ADVICE}" if self._settings.directory is not None else ""
        log.log(level, text, path.absolute(), extra=fields("tokens_made"))


def _first(role: Role) -> str:
    """Return the name of the first token with a role."""
    return f"first-{role}"


def _file_of(tokens: list[AccessToken]) -> str:
    """Return the content of a file with tokens, one a line."""
    comment = f"# Tokens of the coordinatord on {socket.gethostname()}. Each of them lets its bearer in."
    return "\n".join([comment, *(token.text for token in tokens), ""])
