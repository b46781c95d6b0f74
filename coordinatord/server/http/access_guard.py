"""Authenticates and authorizes each request before its handler.

A caller has a token, and the token has a role. The role that a request needs depends only on its method and its path. A
path that is not listed here needs a token.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from coordinatord.protocol.access_token import Role
from coordinatord.protocol.ip_addresses import plain_address
from coordinatord.protocol.messages import SESSION_PATH
from coordinatord.protocol.text import clip
from coordinatord.security.gatekeeper import ANYBODY, Caller, DeniedError, Gatekeeper
from coordinatord.server.http.browser_guard import SAFE_METHODS
from coordinatord.server.http.page_access import PAGE_LINK_PATH, PAGE_SESSION_PATH
from coordinatord.server.http.responses import error_response
from coordinatord.server.sessions.connections import CALLER, with_certificate_names

HEALTH_PATH = "/healthz"

WITHOUT_TOKEN = frozenset({("GET", HEALTH_PATH), ("HEAD", HEALTH_PATH), ("GET", "/"), ("POST", PAGE_SESSION_PATH)})
"""Requests that need no token: a monitor reads the health, a browser loads the empty page and sends a link's code."""

STREAM_PATH = "/v1/stream"
"""The path of the page's data; its query may name a job."""

FILTERED_BY_JOB = frozenset({("GET", "/v1/jobs"), ("HEAD", "/v1/jobs"), ("GET", STREAM_PATH), ("POST", PAGE_LINK_PATH)})
"""Requests about all jobs that also accept a token for some jobs, because their answers, and the page behind a link,
show only these jobs."""

PAGE_PREFIX = "/page/"
"""The prefix of the page's files, which have no data of jobs."""

DESCRIPTION_MAX = 300
"""The limit of an error in a header, in characters. Nodes show it, because a failed upgrade has no body."""


def is_open(method: str, path: str) -> bool:
    """Whether a request with this method and path needs no token."""
    return (method, path) in WITHOUT_TOKEN or (method in SAFE_METHODS and path.startswith(PAGE_PREFIX))


def is_health(method: str, path: str) -> bool:
    """Whether a request asks only for the coordinator's health."""
    return method in SAFE_METHODS and path == HEALTH_PATH


class AccessGuard:
    """Accepts or rejects requests, and attaches the caller to each."""

    def __init__(
        self, gatekeeper: Gatekeeper | None, cookie: str, is_open: Callable[[str, str], bool] = is_open
    ) -> None:
        """Ask the gatekeeper about each caller; without one, accept all.

        `cookie` is the name of the cookie with a browser's session. `is_open` tells by method and path whether a
        request needs no token; a standby passes `is_health`.
        """
        self._gatekeeper = gatekeeper
        self._cookie = cookie
        self._is_open = is_open
        self._requests: dict[int, tuple[web.Request, Caller]] = {}
        """The requests in progress by their `id`, since aiohttp's requests are not hashable."""

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request, or answer it with 401, 403 or 429."""
        try:
            caller = self._caller(request)
        except DeniedError as error:
            return _denial(request, error)
        CALLER.set(caller)
        self._requests[id(request)] = request, caller
        try:
            return await handler(request)
        finally:
            del self._requests[id(request)]

    def end_invalid(self, is_invalid: Callable[[Caller], bool]) -> None:
        """End the requests in progress of callers that are no longer accepted. Some requests last for hours."""
        for request, caller in self._requests.values():
            if is_invalid(caller) and request.transport is not None:
                request.transport.close()

    def _caller(self, request: web.Request) -> Caller:
        """Return the caller of a request. Raises `DeniedError`."""
        authorization = request.headers.get(hdrs.AUTHORIZATION, "")
        session = request.cookies.get(self._cookie) if self._cookie else None
        # A token counts even where none is needed: the answer of `/healthz` has more for its bearer.
        if self._gatekeeper is None or (self._is_open(request.method, request.path) and not authorization):
            return ANYBODY
        role = _needed_role(request)
        job = request.query.get("job") if request.path == STREAM_PATH else request.match_info.get("job")
        own_jobs = (request.method, request.path) in FILTERED_BY_JOB
        peer = plain_address(request.remote or "")
        caller = self._gatekeeper.admit(authorization, role, peer, job, session, own_jobs=own_jobs)
        if caller.in_browser and request.method not in SAFE_METHODS and hdrs.ORIGIN not in request.headers:
            text = "a browser names the page that sends a request, and this one has not"
            raise DeniedError(HTTPStatus.FORBIDDEN, "foreign", text)
        return with_certificate_names(request.transport, caller)


def _needed_role(request: web.Request) -> Role:
    """Return the role that a request needs."""
    if request.path == SESSION_PATH:
        return Role.JOIN
    # A link to the page has the rights of the token that it is made with.
    return Role.READ if request.method in SAFE_METHODS or request.path == PAGE_LINK_PATH else Role.ADMIN


def _denial(request: web.Request, error: DeniedError) -> web.Response:
    answer = error_response(request, error.status, error.code, str(error))
    answer.force_close()  # a rejected caller keeps no connection
    code = "insufficient_scope" if error.status is HTTPStatus.FORBIDDEN else "invalid_token"
    text = clip(str(error), DESCRIPTION_MAX).translate({ord('"'): "'", ord("\\"): "/"})
    description = text.encode("ascii", "replace").decode()
    # RFC 6750, section 3
    answer.headers[hdrs.WWW_AUTHENTICATE] = f'Bearer error="{code}", error_description="{description}"'
    return answer
