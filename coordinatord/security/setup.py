"""Makes the key, the certificate and the first tokens at the first start, and reloads them on SIGHUP.

`Security` combines the key, the certificate and the tokens of a coordinator. *Authorities* are the CA certificates by
which clients' certificates are checked, if an organisation demands these.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from coordinatord.protocol.access_token import AccessToken
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.runtime.local_time import local, moment, now
from coordinatord.runtime.logs import fields
from coordinatord.runtime.pinned_tls import server_context, why_unusable
from coordinatord.runtime.private_files import PrivateFileError, remove_private, tokens_directory, write_private
from coordinatord.security.browser_sessions import BrowserSessions
from coordinatord.security.ephemeral_tokens import write_ephemeral
from coordinatord.security.gatekeeper import Gatekeeper
from coordinatord.security.identity import Identity, IdentityError, ephemeral_identity, own_identity
from coordinatord.security.token_store import ALL_JOBS, FIRST_NAMES, TokenStore, new_tokens

log = logging.getLogger(__name__)

FOLDER = "security"
"""The name of the folder in the state directory with all files of this package."""

FIRST_TOKENS = "tokens"
"""The file in this folder with the first tokens, if the user has no directory for them. It may be copied and
removed."""

PIN = "pin"
"""The file in this folder with the pin of an organisation's key, which `coordinatord token` needs for new tokens."""

EXPIRES_SOON_S = 14 * 86_400.0
"""How long before the end of a certificate users are warned: they may be on holiday for a week, and a new certificate
may take some days. One that lives for less than six weeks is renewed by a program, which does so when a third of its
time is left, as ACME clients do: it is warned of after that."""

WARN_EVERY_S = 86_400.0
"""How often they are warned of the same certificate."""

SESSION_KEY = "sessions of browsers"
"""The purpose of the derived key that signs sessions."""


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


class _Loaded(Struct, frozen=True):
    """The key, certificate and authorities, as loaded from their files at one moment."""

    context: ssl.SSLContext
    """The TLS context of new connections."""
    pin: str
    """The hash of the key, which tokens have, so that clients know this coordinator by it."""
    certificate: bytes
    expires_at: float
    """When the certificate expires, in seconds since 1970; infinity for our own one."""
    expires_soon_at: float
    """When warnings of that begin."""
    authorities: bytes
    """The content of `client_authorities`; empty without the file."""
    session_key: bytes
    """The key that signs browsers' sessions."""


class Security:
    """The key, the certificate and the tokens of a coordinator."""

    def __init__(self, settings: SecuritySettings, environ: Mapping[str, str], clock: Callable[[], float]) -> None:
        """Read the files, and make missing ones, but no tokens; `clock` returns seconds that only grow.

        Raises `IdentityError`, `TokenStoreError` and `PrivateFileError`.
        """
        self._settings = settings
        self._environ = environ
        self._clock = clock
        self._warn_at = -math.inf
        """When to warn again of a certificate that expires, by this clock."""
        self.token_store = TokenStore(settings.directory)
        self._ephemeral_file: tuple[Path, int] | None = None
        """The file of tokens that end with this process, and the descriptor that locks it; None if they are durable."""
        self._ephemeral_identity: Identity | None = None
        """The key and certificate that end with this process; None if they are durable."""
        self._loaded = self._load()
        self._store_pin(self.pin)
        self.gatekeeper = Gatekeeper(self.token_store, _browsers(self._loaded), clock)
        self.token_store.refresh()
        self.warn_of_expiry()

    def make_first_tokens(self) -> None:
        """Make the first tokens and hand them out, unless an earlier start has done that.

        Raises `NoTokensDirectoryError`, `TokenStoreError` and `PrivateFileError`.
        """
        # There may be other tokens: `coordinatord token new` works before the first start.
        if not FIRST_NAMES.keys() & {token.name for token in self.token_store.tokens}:
            first = new_tokens(self.pin, FIRST_NAMES)
            # If this start ends before it has stored them, the next start makes others.
            self._hand_out(tuple(first.values()))
            self.token_store.add(first, ALL_JOBS)

    @property
    def has_given_certificate(self) -> bool:
        """Whether the certificate in use is an organisation's."""
        return self._settings.certificate is not None

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context of new connections; a reload replaces it."""
        return self._loaded.context

    @property
    def pin(self) -> str:
        """The pin of the key in use."""
        return self._loaded.pin

    @property
    def expires_at(self) -> float:
        """When the certificate in use expires, in seconds since 1970; infinity if it never does."""
        return self._loaded.expires_at

    @property
    def expires_soon_at(self) -> float:
        """When warnings of that begin, in seconds since 1970; infinity if they never do."""
        return self._loaded.expires_soon_at

    def warn_of_expiry(self) -> None:
        """Warn, once a day, of a certificate that expires soon or has expired."""
        if now().timestamp() < self.expires_soon_at or self._clock() < self._warn_at:
            return
        self._warn_at = self._clock() + WARN_EVERY_S
        text = "the certificate %s expires at %s; from then on nodes with --tls-ca refuse it, as all do who check it"
        advice = "put a renewed one in its place, and reload it by SIGHUP (systemctl reload coordinatord)"
        names = fields("certificate_expires")
        log.warning(f"{text}: {advice}", self._settings.certificate, moment(local(self.expires_at)), extra=names)  # noqa: G004

    def reload(self) -> None:
        """Reload certificate, authorities and tokens, for new connections.

        An error is logged. If a file of TLS is wrong, certificate and authorities stay as they were; if the file of
        tokens is wrong, the tokens stay.
        """
        before = self._loaded
        try:
            loaded = self._load()
            if loaded.pin != before.pin:
                self._store_pin(loaded.pin)
        except (IdentityError, PrivateFileError) as error:
            log.error("not reloaded, nothing about TLS has changed: %s", error, extra=fields("tls_reload_failed"))  # noqa: TRY400
        else:
            self._loaded = loaded
            if loaded.pin != before.pin:
                self.gatekeeper.browsers = _browsers(loaded)
            _log_changes(before, loaded)
            self._warn_at = -math.inf
            self.warn_of_expiry()
        self.token_store.try_refresh()

    def close(self) -> None:
        """Remove the file of tokens that end with this process."""
        if self._ephemeral_file is not None:
            path, lock = self._ephemeral_file
            path.unlink(missing_ok=True)
            os.close(lock)

    def _load(self) -> _Loaded:
        """Read the files, and make missing ones of our own. Raises `IdentityError` and `PrivateFileError`.

        The context is always a new one, without TLS sessions, so a client of a removed authority cannot resume one.
        """
        authorities, identity = self._settings.client_authorities, self._identity()
        try:
            context = server_context(None if authorities is None else str(authorities))
        except OSError as error:
            raise IdentityError(f"the authorities {authorities} cannot be used: {why_unusable(error)}") from error
        pin = identity.load_into(context)
        begins_at, expires_at = identity.validity() if self.has_given_certificate else (0.0, math.inf)
        return _Loaded(
            context=context,
            pin=pin,
            certificate=_read(identity.certificate),
            expires_at=expires_at,
            expires_soon_at=expires_at - min(EXPIRES_SOON_S, (expires_at - begins_at) / 3),
            authorities=b"" if authorities is None else _read(authorities),
            session_key=identity.derived_key(SESSION_KEY),
        )

    def _store_pin(self, pin: str) -> None:
        """Store the pin of an organisation's key for `coordinatord token`. Raises `PrivateFileError`."""
        if self._settings.directory is None:
            return
        path = self._settings.directory / PIN
        if self.has_given_certificate:
            write_private(path, f"{pin}\n")
        else:
            remove_private(path)

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

    def _hand_out(self, first: Sequence[AccessToken]) -> None:
        """Write the first tokens to this user's directory, where nodes and commands find them.

        If the user has no such directory, as for a service, the file is in the state directory.
        """
        content = _file_of(first)
        # Nodes elsewhere should not have the first tokens: one of them may also stop and drain.
        advice = f"for nodes elsewhere, which may only join, {self.token_store.how_to_make('--output FILE')}"
        try:
            path = tokens_directory(self._environ) / self.pin
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
            text = f"the first tokens are in %s: operators name it by --token-file; {advice}"
        else:
            level = logging.INFO
            text = "the first tokens are in %s, where nodes and commands of this user find them"
            text += f"; {advice}" if self._settings.directory is not None else ""
        log.log(level, text, path.absolute(), extra=fields("tokens_made"))


def _browsers(loaded: _Loaded) -> BrowserSessions:
    return BrowserSessions(loaded.session_key, lambda: now().timestamp())


def _log_changes(before: _Loaded, after: _Loaded) -> None:
    if after.pin != before.pin:
        text = "the key of the certificate is another one now: tokens of the old one no longer fit"
        log.warning(text, extra=fields("key_changed"))
    elif after.certificate != before.certificate:
        log.info("another certificate is shown from now on", extra=fields("certificate_changed"))
    if after.authorities != before.authorities:
        text = "clients have to show a certificate of other authorities from now on"
        log.info(text, extra=fields("client_authorities_changed"))


def _read(path: Path) -> bytes:
    """Return the content of a file. Raises `IdentityError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise IdentityError(f"{path} cannot be read: {error.strerror}") from error


def _file_of(tokens: Sequence[AccessToken]) -> str:
    """Return the content of a file with tokens, one a line."""
    comment = f"# Tokens of the coordinatord on {socket.gethostname()}. Each of them lets its bearer in."
    return "\n".join([comment, *(token.text for token in tokens), ""])
