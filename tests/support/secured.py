"""Coordinators for those with a token: what they need, in a directory of a test's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coordinatord.protocol.access_token import AccessToken, Role, tokens_in
from coordinatord.security.setup import FOLDER, Security, SecuritySettings
from coordinatord.security.token_store import TokenStore
from tests.support.programs import as_by_default, clean_environ


def first_token(home: Path, role: Role, pin: str = "*") -> AccessToken:
    """Return the token of this role that a coordinator of a user has left at its first start.

    The coordinator is the one with this key, or the only one.
    """
    [left] = (home / "coordinatord" / "tokens").glob(pin)
    return next(token for token in tokens_in(left.read_text()) if token.role is role)


@dataclass(frozen=True)
class Secured:
    """A state directory, the configuration directory of its user, and the server's part."""

    folder: Path
    security: Security

    @property
    def home(self) -> Path:
        """What the user has as XDG_CONFIG_HOME."""
        return self.folder / "config"

    @property
    def store(self) -> TokenStore:
        """The tokens as another process sees them."""
        store = TokenStore(self.folder / "state" / FOLDER)
        store.refresh()
        return store

    def token(self, role: Role = Role.JOIN) -> AccessToken:
        """Return the first token of this role."""
        return first_token(self.home, role)

    def add(self, name: str, role: Role, jobs: str = "*") -> AccessToken:
        """Make another token, as `coordinatord token new` does."""
        return self.store.add(self.security.pin, role, name, jobs)


def secured(folder: Path, clock: Callable[[], float] = time.monotonic, **own: Path) -> Secured:
    """Make what a first start makes; `own` are the files of an organisation, as in `SecuritySettings`."""
    environ = clean_environ(**as_by_default(folder / "config"))
    settings = SecuritySettings(folder / "state" / FOLDER, **own)
    return Secured(folder, Security.open(settings, environ, clock))
