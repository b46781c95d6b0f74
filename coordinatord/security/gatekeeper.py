"""The gate before everything that is served: it identifies callers, and decides what they may do.

A request over HTTP and a node's session pass the same gate. A valid token is always let in: a secret cannot be guessed,
so failures are counted only to bound what they cost. An address with many failures gets a short answer and no more log
lines. This makes no difference to nodes with a token behind the same address.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus

from msgspec import Struct

from coordinatord.protocol.access_token import BEARER, Role, TokenFormError, parse_token
from coordinatord.protocol.errors import OperationalError
from coordinatord.runtime.logs import fields
from coordinatord.security.browser_sessions import BrowserSessions
from coordinatord.security.token_store import ALL_JOBS, KnownToken, TokenStore, find

log = logging.getLogger(__name__)

FAILURES_MAX = 20
"""Failures of one address within `WINDOW_S` that are answered and logged in full: a node without a token tries again
every second, and a person a few times."""

WINDOW_S = 60.0

ADDRESSES_MAX = 10_000
"""Addresses whose failures are counted. Beyond that the oldest is forgotten, so a caller with very many addresses is
answered in full more often."""

SITES_MAX = 1_024
"""The size of the cache of `site`, which is called two or three times for each connection."""

SESSION_OVER = "session_over"
"""The code of the error of each page that is still open when its session ends, which is nothing to worry about."""

BITS_OF_A_SITE = 64
"""An IPv6 address counts by its first half: a host that has one address has 2^64."""


class DeniedError(OperationalError):
    """A caller is not let in. Nothing has changed."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Caller(Struct, frozen=True):
    """A person or a program that was let in."""

    token: KnownToken | None
    """None where everybody is let in (`--insecure`)."""
    names: frozenset[str] | None = None
    """The names in the certificate that the caller has shown, which may have none; None if it was not asked for one."""
    in_browser: bool = False
    """It is a browser's session, which sends its cookie unasked, and not the bearer of a token."""

    @property
    def name(self) -> str:
        """The name of the token, for events and logs; empty if there is none."""
        return "" if self.token is None else self.token.name

    @property
    def jobs(self) -> str:
        """The pattern of the job ids that it may see; `*` for all."""
        return ALL_JOBS if self.token is None else self.token.jobs

    def is_for(self, job: str) -> bool:
        """Whether it may see a job of this id."""
        return self.token is None or self.token.is_for(job)

    def check_job(self, job: str) -> None:
        """Refuse a job that the token is not for. Raises `DeniedError`."""
        if self.token is not None and not self.is_for(job):
            text = f"the token {self.name} is for jobs {self.token.jobs}, and not for {job}"
            raise DeniedError(HTTPStatus.FORBIDDEN, "foreign_job", text)

    def check_node(self, node: str) -> None:
        """Refuse a node id that the caller's certificate is not for. Raises `DeniedError`.

        It is for node ids that are one of its names, and for those that continue one after a dash, as `gpu7-2` does.
        """
        if self.names is None or any(node == name or node.startswith(f"{name}-") for name in self.names):
            return
        if not self.names:
            text = "the client's certificate names no node: it has no common name, DNS name or IP address"
        else:
            named = ", ".join(sorted(self.names)[:3])
            text = f"the client's certificate is for {named}, so it cannot be the node {node}: see --node-id"
        raise DeniedError(HTTPStatus.FORBIDDEN, "foreign_node", text)


ANYBODY = Caller(None)
"""Every caller, where no token is needed."""


class Gatekeeper:
    """Lets callers in by the tokens of a store."""

    def __init__(self, store: TokenStore, browsers: BrowserSessions, clock: Callable[[], float]) -> None:
        """Begin without failures; `clock` returns seconds that only grow."""
        self._store = store
        self._clock = clock
        self.browsers = browsers
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """When the window of an address began, and its failures since."""
        self.denied = 0
        """The number of all callers so far that were not let in."""

    def admit(
        self,
        authorization: str,
        wanted: Role,
        peer: str,
        job: str | None = None,
        session: str | None = None,
        *,
        own_jobs: bool = False,
    ) -> Caller:
        """Let in the bearer of a token that has the role `wanted`, for one job or for all. Raises `DeniedError`.

        With `own_jobs` the request is for the jobs that the token is for, whichever these are. A browser has its
        `session` instead of a token.
        """
        try:
            if session is not None and not authorization:
                caller = Caller(self._token_of_session(session), in_browser=True)
            else:
                caller = Caller(self._token_of(authorization))
            return self._check(caller, wanted, job, own_jobs=own_jobs)
        except DeniedError as error:
            self._count(error, peer)
            raise

    def recognize(self, authorization: str, wanted: Role, job: str | None = None) -> Caller:
        """Let in the bearer of a token as `admit` does, but without counting a failure. Raises `DeniedError`."""
        return self._check(Caller(self._token_of(authorization)), wanted, job)

    @staticmethod
    def _check(caller: Caller, wanted: Role, job: str | None, *, own_jobs: bool = False) -> Caller:
        token = caller.token
        assert token is not None  # noqa: S101 - a caller without one was refused before
        if not token.role.may(wanted):
            remedy = f"make one where coordinatord runs, by coordinatord token new --role {wanted}"
            text = f"the token {token.name} has the role {token.role}, and this needs {wanted}: {remedy}"
            raise DeniedError(HTTPStatus.FORBIDDEN, "role", text)
        if job is not None:
            caller.check_job(job)
        elif token.bound and not own_jobs and wanted is not Role.JOIN:  # a node names its job in its first message
            remedy = "name a job, or use a token for all jobs"
            text = f"the token {token.name} is for jobs {token.jobs} only, and this is about all: {remedy}"
            raise DeniedError(HTTPStatus.FORBIDDEN, "foreign_job", text)
        return caller

    def is_valid(self, caller: Caller) -> bool:
        """Whether a caller that was let in would be let in again."""
        return caller.token is None or caller.token in self._store.tokens

    def _token_of(self, authorization: str) -> KnownToken:
        """Return the valid token in a header. Raises `DeniedError`."""
        if not authorization:
            text = "a token is wanted here: make one where coordinatord runs, by coordinatord token new"
            raise DeniedError(HTTPStatus.UNAUTHORIZED, "no_token", text)
        try:
            secret = parse_token(authorization.removeprefix(BEARER).strip()).secret
        except TokenFormError as error:
            raise DeniedError(HTTPStatus.UNAUTHORIZED, "no_token", str(error)) from error
        self._store.keep_fresh()  # it may have been made, or revoked, a moment ago
        known = find(self._store.tokens, secret)
        if known is None:
            text = "the token is not known here: was it removed, or is it of another coordinator's state directory?"
            raise DeniedError(HTTPStatus.UNAUTHORIZED, "unknown_token", text)
        if known.revoked_at is not None:
            text = f"the token {known.name} was revoked: ask for another one"
            raise DeniedError(HTTPStatus.UNAUTHORIZED, "revoked_token", text)
        return known

    def _token_of_session(self, session: str) -> KnownToken:
        """Return the valid token for which a browser's session stands. Raises `DeniedError`."""
        token = self.browsers.token_of(session, self._store.tokens)
        if token is None:
            text = "the session of this browser is over: run nodeclient page, and open the link that it prints"
            raise DeniedError(HTTPStatus.UNAUTHORIZED, SESSION_OVER, text)
        return token

    def open_session(self, link: str, peer: str) -> tuple[str, KnownToken]:
        """Open a browser's session by a link; return it and its token. Raises `DeniedError`."""
        found = self.browsers.open(link)
        if found is not None and found[1] in self._store.tokens:
            return found
        text = "this link was used already, or is too old: run nodeclient page for another one"
        error = DeniedError(HTTPStatus.UNAUTHORIZED, "unknown_link", text)
        self._count(error, peer)
        raise error

    def note_distrusted(self, reason: str, peer: str) -> None:
        """Count and log a client that TLS has sent away because of its certificate, or because it showed none."""
        with suppress(DeniedError):
            self._count(DeniedError(HTTPStatus.UNAUTHORIZED, "certificate", reason), peer)

    def _count(self, error: DeniedError, peer: str) -> None:
        """Count and log a failure. Raises `DeniedError` if the address has had too many."""
        self.denied += 1
        address, now = site(peer), self._clock()
        began, failures = self._failures.pop(address, (now, 0))
        if now - began > WINDOW_S:
            began, failures = now, 0
        self._failures[address] = (began, failures + 1)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)
        if failures < FAILURES_MAX:
            level = logging.INFO if error.code == SESSION_OVER else logging.WARNING
            log.log(level, "not let in: %s", error, extra=fields("access_denied", peer=peer, code=error.code))
            return
        if failures == FAILURES_MAX:
            text = "not let in: %s; more of this address is not logged for now"
            log.warning(text, error, extra=fields("access_denied_often", peer=peer, code=error.code))
        text = f"too many requests of this address were not let in: wait a minute; the last one: {error.code}"
        raise DeniedError(HTTPStatus.TOO_MANY_REQUESTS, "too_many", text) from error


@lru_cache(SITES_MAX)
def site(peer: str) -> str:
    """Return the key that the failures of an address are counted by."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if address.version == 4 or address.ipv4_mapped is not None:  # noqa: PLR2004 - of the protocol
        return peer
    return str(ipaddress.ip_network((address, BITS_OF_A_SITE), strict=False))
