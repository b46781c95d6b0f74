"""Authenticates and authorizes all callers: HTTP requests and nodes' sessions.

Nobody can guess a token's secret, so failures are counted only to limit their cost: an address with many failures gets
short answers and no more log lines. A valid token is accepted even from such an address.
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
from coordinatord.security.token_store import ALL_JOBS, KnownToken, TokenStore, find_by_secret

log = logging.getLogger(__name__)

FAILURES_MAX = 20
"""How many failures of one address within `WINDOW_S` are answered and logged in full: a node without a token retries
every second, and a person a few times."""

WINDOW_S = 60.0
"""The time after which the failures of an address are counted from 0 again."""

ADDRESSES_MAX = 10_000
"""The limit of addresses with counted failures; the one whose last failure is longest ago is dropped."""

NETWORKS_MAX = 1_024
"""The size of the cache of `client_network`, which is called two or three times for each connection."""

NETWORK_BITS = 64
"""The length of the prefix by which IPv6 addresses are counted: one host may have 2^64 addresses."""

SESSION_OVER = "session_over"
"""The error code of a page that is still open when its session ends, which is harmless."""


class DeniedError(OperationalError):
    """A caller is rejected. State: nothing has changed."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Caller(Struct, frozen=True):
    """A person or a program that was accepted."""

    token: KnownToken | None
    """None if no token is needed (`--insecure`)."""
    names: frozenset[str] | None = None
    """The names in the caller's certificate; None if no certificate was demanded. `with_certificate_names` adds them,
    after a token was accepted."""
    session: str | None = None
    """The cookie of a browser's session; None if it has shown the token itself."""

    @property
    def in_browser(self) -> bool:
        """Whether it is a browser, which sends its cookie also if another page makes the request."""
        return self.session is not None

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
        """Check that the token is for a job. Raises `DeniedError`."""
        if self.token is not None and not self.is_for(job):
            text = f"the token {self.name} is for jobs {self.token.jobs}, and not for {job}"
            raise DeniedError(HTTPStatus.FORBIDDEN, "foreign_job", text)

    def check_node(self, node: str) -> None:
        """Check that the caller's certificate is for a node id. Raises `DeniedError`.

        It is for its own names, and for these names with a suffix, as in `gpu7-2`.
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
"""The caller if no token is needed."""


class Gatekeeper:
    """Accepts and rejects callers by the tokens of a store."""

    def __init__(self, store: TokenStore, browsers: BrowserSessions, clock: Callable[[], float]) -> None:
        """Begin without failures; `clock` returns seconds that only grow."""
        self._store = store
        self._clock = clock
        self.browsers = browsers
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """When the window of an address began, and its number of failures since."""
        self.denied = 0
        """How often a caller was rejected."""

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
        """Accept the bearer of a token with the role `wanted`; count and log a failure. Raises `DeniedError`.

        The request is about one `job`; without it, about all jobs or, with `own_jobs`, about all jobs of the token. A
        browser has the cookie of its `session` instead of a token.
        """
        try:
            if session is not None and not authorization:
                caller = Caller(self._token_of_session(session), session=session)
            else:
                caller = Caller(self._token_of(authorization, wanted))
            return self._check(caller, wanted, job, own_jobs=own_jobs)
        except DeniedError as error:
            self._count_failure(error, peer)
            raise

    def admit_uncounted(self, authorization: str, wanted: Role) -> Caller:
        """Accept the bearer of a token as `admit` does, but count and log no failure. Raises `DeniedError`.

        `Connections` calls it before aiohttp's handlers see a request. It hands a rejected request on to them, where
        `AccessGuard` calls `admit`: that rejects the request again, and counts and logs it.
        """
        return self._check(Caller(self._token_of(authorization, wanted)), wanted, None)

    def _check(self, caller: Caller, wanted: Role, job: str | None, *, own_jobs: bool = False) -> Caller:
        token = caller.token
        assert token is not None  # noqa: S101 - a caller without one was rejected before
        if not token.role.may(wanted):
            remedy = self._store.how_to_make(f"--role {wanted}")
            text = f"the token {token.name} has the role {token.role}, and this needs {wanted}: {remedy}"
            raise DeniedError(HTTPStatus.FORBIDDEN, "role", text)
        if job is not None:
            caller.check_job(job)
        elif token.is_for_some_jobs and not own_jobs and wanted is not Role.JOIN:  # a node names its job in its `Join`
            remedy = "name a job, or use a token for all jobs"
            text = f"the token {token.name} is for jobs {token.jobs} only, and this is about all: {remedy}"
            raise DeniedError(HTTPStatus.FORBIDDEN, "foreign_job", text)
        return caller

    def is_valid(self, caller: Caller) -> bool:
        """Whether an accepted caller would be accepted again: a browser's session ends also by time and by key."""
        if caller.session is not None:
            return self.browsers.token_of(caller.session, self._store.tokens) is not None
        # A revoked token is not equal to the accepted one, because `revoked_at` is set.
        return caller.token is None or caller.token in self._store.tokens

    def _token_of(self, authorization: str, wanted: Role) -> KnownToken:
        """Return the valid token that a header has; one with the role `wanted` is needed. Raises `DeniedError`."""
        if not authorization:
            # Strangers are not told the path of the state directory.
            remedy = (
                f"make one where coordinatord runs, with its --state-dir, by coordinatord token new --role {wanted}"
            )
            text = f"a token is wanted here: {remedy}"
            raise DeniedError(HTTPStatus.UNAUTHORIZED, "no_token", text)
        try:
            secret = parse_token(authorization.removeprefix(BEARER).strip()).secret
        except TokenFormError as error:
            raise DeniedError(HTTPStatus.UNAUTHORIZED, "no_token", str(error)) from error
        self._store.try_refresh()  # it may have been made, or revoked, a moment ago
        known = find_by_secret(self._store.tokens, secret)
        if known is None:
            text = "the token is not known here: was it removed, or is it of another coordinator's state directory?"
            raise DeniedError(HTTPStatus.UNAUTHORIZED, "unknown_token", text)
        if known.revoked_at is not None:
            text = f"the token {known.name} was revoked: ask for another one"
            raise DeniedError(HTTPStatus.UNAUTHORIZED, "revoked_token", text)
        return known

    def _token_of_session(self, session: str) -> KnownToken:
        """Return the valid token of a browser's session. Raises `DeniedError`."""
        token = self.browsers.token_of(session, self._store.tokens)
        if token is None:
            text = "the session of this browser is over: run nodeclient page, and open the link that it prints"
            raise DeniedError(HTTPStatus.UNAUTHORIZED, SESSION_OVER, text)
        return token

    def open_session(self, link: str, peer: str) -> tuple[str, KnownToken]:
        """Open a browser's session by the secret of a link; return its cookie and its token. Raises `DeniedError`."""
        found = self.browsers.open(link)
        if found is not None and found[1] in self._store.tokens:
            return found
        text = "this link was used already, or is too old: run nodeclient page for another one"
        error = DeniedError(HTTPStatus.UNAUTHORIZED, "unknown_link", text)
        self._count_failure(error, peer)
        raise error

    def record_bad_certificate(self, reason: str, peer: str) -> None:
        """Count and log a client with a bad certificate or none, which the TLS handshake has rejected."""
        with suppress(DeniedError):
            self._count_failure(DeniedError(HTTPStatus.UNAUTHORIZED, "certificate", reason), peer)

    def _count_failure(self, error: DeniedError, peer: str) -> None:
        """Count and log a failure. Raises another `DeniedError` if the address has had too many failures."""
        self.denied += 1
        address, now = client_network(peer), self._clock()
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
        text = f"{error}; too many requests of this address were not let in within a minute"
        raise DeniedError(HTTPStatus.TOO_MANY_REQUESTS, "too_many", text) from error


@lru_cache(NETWORKS_MAX)
def client_network(peer: str) -> str:
    """Return the network of an address, by which clients are counted: an IPv4 address, or the prefix of an IPv6 one."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if address.version == 4 or address.ipv4_mapped is not None:  # noqa: PLR2004 - of the protocol
        return peer
    return str(ipaddress.ip_network((address, NETWORK_BITS), strict=False))
