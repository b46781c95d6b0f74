"""Finds access tokens: in a named file, in the environment, among systemd's credentials, or in the user's directory.

Each attempt to connect looks them up, so a new or replaced token needs no restart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from coordinatord.protocol.access_token import AccessToken, Role, TokenFormError, parse_tokens
from coordinatord.protocol.errors import OperationalError
from coordinatord.runtime.private_files import PrivateFileError, read_given, read_private, tokens_directory

VARIABLE = "NODECLIENT_TOKEN"
"""The variable with a token, for schedulers that pass secrets in variables."""

CREDENTIAL = "nodeclient-token"
"""The name of a credential of systemd (`LoadCredential=`)."""

_PIN = re.compile(r"[a-z2-7]{52}", re.ASCII)
"""A pin as the name of a file: 256 bits in base32."""

FILES_MAX = 1_000
"""The limit of files in a user's directory, which has one for each coordinator that the user has ever started."""


class KeyringError(OperationalError):
    """A token cannot be used."""


class AccessSettings(Struct, frozen=True):
    """The places of tokens, and how to connect to coordinators."""

    token_file: Path | None = None
    token: str = ""
    """The token in the environment; empty if there is none."""
    credentials: str = ""
    """CREDENTIALS_DIRECTORY, the directory of systemd's credentials; empty if there is none."""
    config_home: str = ""
    """XDG_CONFIG_HOME; empty for the default."""
    authorities: Path | None = None
    """The file of the certificate authorities to trust, instead of the pin in a token."""
    certificate: Path | None = None
    """The client certificate for a coordinator that demands one; with its `key`."""
    key: Path | None = None
    insecure: bool = False
    """Whether to use neither TLS nor a token."""
    plaintext_allowed: bool = False
    """Whether to accept a coordinator without TLS: a node may have started it, and such a coordinator has no token."""

    def __repr__(self) -> str:
        """Show nothing: the token is a secret."""
        return f"{type(self).__name__}(...)"

    @property
    def is_given(self) -> bool:
        """Whether this program was given a token, and so does not search the user's directory."""
        return self.token_file is not None or bool(self.token) or self.credential is not None

    @property
    def credential(self) -> Path | None:
        """The file with the token among systemd's credentials; None if there is none that this user can see.

        This program may have inherited CREDENTIALS_DIRECTORY from a service of another user.
        """
        path = Path(self.credentials, CREDENTIAL)
        is_there = self.credentials != "" and os.path.exists(path)  # noqa: PTH110 - `Path.exists` may raise
        return path if is_there else None


INSECURE_ACCESS = AccessSettings(insecure=True)
"""The settings for a connection in the clear, which sends no token."""


class Keyring(Struct, frozen=True):
    """The tokens that were found in one place."""

    source: str
    """The place, for people; empty if there are no tokens anywhere."""
    tokens: Mapping[str, tuple[AccessToken, ...] | KeyringError] = {}
    """The tokens by the pin of their coordinator, or why they cannot be used."""

    def token_for(self, pin: str, role: Role, *, any_key: bool = False) -> AccessToken:
        """Return the token for the coordinator with this pin. Raises `KeyringError`.

        If there is none of this `role`, return one of another role: `admin` may read too, and a coordinator that
        refuses the token names the needed role.

        With `any_key`, a certificate authority vouches for the coordinator. Its key may then be new, or a proxy's, so
        that no token has its pin. In that case, the tokens of the first coordinator in this keyring are used.
        """
        wanted = pin if pin in self.tokens or not any_key else next(iter(self.tokens), pin)
        found = self.tokens.get(wanted, ())
        if isinstance(found, KeyringError):
            raise found
        by_role = {token.role: token for token in found}
        for candidate in (role, Role.ADMIN, Role.READ, Role.JOIN):
            if candidate in by_role:
                return by_role[candidate]
        raise KeyringError(f"{self.source} has no token for the coordinator with the key {pin}")


def find_keyring(settings: AccessSettings) -> Keyring:
    """Return the tokens of the first place that has any; none with `insecure`. Raises `KeyringError`."""
    if settings.insecure:
        return Keyring("")
    try:
        if settings.token_file is not None:
            return _of_text(str(settings.token_file), read_given(settings.token_file))
        if settings.token:
            return _of_text(f"environment variable {VARIABLE}", settings.token)
        if (credential := settings.credential) is not None:
            return _of_text(str(credential), read_given(credential))
        return _of_user(settings)
    except PrivateFileError as error:
        raise KeyringError(str(error)) from error


def keyring_of(proven: AccessToken) -> Keyring:
    """Return a keyring with only one token, which a coordinator has accepted before."""
    return Keyring("the memory of this process", {proven.pin: (proven,)})


def forget_variable() -> None:
    """Remove the token from the environment of this process, so that no child inherits it.

    /proc and core files show the memory of a process's first environment, so the token is overwritten there.
    """
    value = os.environ.get(VARIABLE)
    if value is None:
        return
    import ctypes  # noqa: PLC0415 - few have a token there

    getenv = ctypes.CDLL(None).getenv
    getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_void_p
    if place := getenv(VARIABLE.encode()):
        ctypes.memset(place, ord("x"), len(os.fsencode(value)))
    del os.environ[VARIABLE]


def _of_text(source: str, text: str) -> Keyring:
    try:
        tokens = parse_tokens(text)
    except TokenFormError as error:
        raise KeyringError(f"{source}: {error}") from error
    pins = dict.fromkeys(token.pin for token in tokens)  # in the order of the text
    return Keyring(source, {pin: tuple(token for token in tokens if token.pin == pin) for pin in pins})


def _of_user(settings: AccessSettings) -> Keyring:
    """Return the tokens in the user's own directory, whose files are named by the coordinators' pins."""
    try:
        folder = tokens_directory({"XDG_CONFIG_HOME": settings.config_home})
        pins = sorted(filter(_PIN.fullmatch, os.listdir(folder)))  # noqa: PTH208 - names are wanted
    except (OSError, PrivateFileError):
        return Keyring("")
    return Keyring(str(folder) if pins else "", {pin: _tokens_in_file(folder / pin) for pin in pins[:FILES_MAX]})


def _tokens_in_file(path: Path) -> tuple[AccessToken, ...] | KeyringError:
    """Return the tokens in a file, which is named by its coordinator's pin, or the error."""
    try:
        text = read_private(path)
        tokens = () if text is None else parse_tokens(text)
    except PrivateFileError as error:
        return KeyringError(str(error))
    except TokenFormError as error:
        return KeyringError(f"{path}: {error}")
    return tuple(token for token in tokens if token.pin == path.name)
