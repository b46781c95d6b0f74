"""Coordinators for those with a token: what they need, in a directory of a test's own, and what a test asks them."""

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any

import aiohttp

from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.access_token import AccessToken, Role, parse_tokens
from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.messages import Desired, Goal, Join, Refused
from coordinatord.runtime.pinned_tls import pinned_context
from coordinatord.runtime.websocket.frames import BINARY
from coordinatord.security.setup import FOLDER, Security, SecuritySettings
from coordinatord.security.token_store import ALL_JOBS, TokenStore
from coordinatord.server.app import ListenAddress, Server, serve
from coordinatord.server.sessions.connection_limits import ConnectionLimits
from coordinatord.store.database_store import MemoryStore, Store
from tests.support.programs import as_by_default, clean_environ
from tests.support.raw_websocket import Wire, message, request, wire


def first_token(home: Path, role: Role, pin: str = "*") -> AccessToken:
    """Return the token of this role that a coordinator of a user has left at its first start.

    The coordinator is the one with this key, or the only one.
    """
    [left] = (home / "coordinatord" / "tokens").glob(pin)
    return next(token for token in parse_tokens(left.read_text()) if token.role is role)


def add_token(store: TokenStore, pin: str, role: Role, name: str, jobs: str = ALL_JOBS) -> AccessToken:
    """Make one token, and return it."""
    made: list[AccessToken] = []
    store.make(pin, {name: role}, jobs, made.extend)
    return made[0]


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

    def add(self, name: str, role: Role, jobs: str = ALL_JOBS) -> AccessToken:
        """Make another token, as `coordinatord token new` does."""
        return add_token(self.store, self.security.pin, role, name, jobs)


def secured(folder: Path, **own: Path) -> Secured:
    """Make what a first start makes; `own` are the files of an organisation, as in `SecuritySettings`."""
    environ = clean_environ(**as_by_default(folder / "config"))
    settings = SecuritySettings(folder / "state" / FOLDER, **own)
    security = Security(settings, environ, time.monotonic)
    security.make_first_tokens()
    return Secured(folder, security)


TRUSTING = pinned_context(lambda _: None)
"""The TLS of a client that takes any key."""


@asynccontextmanager
async def serving(
    ours: Secured, store: Store | None = None, limits: ConnectionLimits | None = None, listener: socket | None = None
) -> AsyncIterator[Server]:
    """Run a coordinator with these tokens, at a port of its own or at a socket that listens."""
    where = ListenAddress("127.0.0.1", 0, [listener] if listener else [])
    async with serve(where, Policy(), store or MemoryStore(), security=ours.security, limits=limits) as server:
        yield server


async def ask(
    server: Server, path: str, token: AccessToken | None = None, method: str = "GET", body: object = None
) -> tuple[int, Any, str]:
    """Return the status, the answer and the header with the reason."""
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token.text}"} if token else {})
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, f"{server.url}{path}", ssl=TRUSTING, headers=headers, json=body) as answer,
    ):
        said = await answer.json() if "json" in answer.content_type else await answer.text()
        return answer.status, said, answer.headers.get("WWW-Authenticate", "")


def session(token: AccessToken, first: Join) -> bytes:
    """Return all that a node sends to begin a session."""
    return request(f"Authorization: Bearer {token.text}") + message(encode(first))


async def goal(peer: Wire) -> Goal:
    """Return the goal that a node is given first."""
    await peer.upgraded()
    found = await peer.frame()
    assert found is not None
    return decode(found[1], Desired).goal


async def goal_of(server: Server, token: AccessToken, first: Join, tls: ssl.SSLContext = TRUSTING) -> Goal:
    """Return the goal that a node is given which leaves then."""
    async with wire(server.url, session(token, first), tls=tls) as peer:
        return await goal(peer)


async def refusal_of(server: Server, token: AccessToken, first: Join, tls: ssl.SSLContext = TRUSTING) -> Refused:
    """Return how a node is refused."""
    async with wire(server.url, session(token, first), tls=tls) as peer:
        return await refusal(peer)


async def refusal(peer: Wire) -> Refused:
    """Return the refusal that ends a session, whatever comes before it."""
    await peer.upgraded()
    while (found := await peer.frame()) is not None:
        if found[0] == BINARY and isinstance(said := decode(found[1], Desired, Refused), Refused):
            return said
    raise AssertionError
