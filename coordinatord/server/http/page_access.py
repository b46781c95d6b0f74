"""Signs browsers in: `nodeclient page` requests a link, and the page behind the link opens a session.

The link has a code after the `#`, which a browser does not send; the page sends it in a request's body. So no log has
the code, and a program that only fetches links does not use it up.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from aiohttp import web

from coordinatord.protocol.access_token import Role
from coordinatord.protocol.http.api import PageLinkAnswer, PageLinkBody, PageSessionAnswer, PageSessionBody
from coordinatord.protocol.http.page_events import PageViewer
from coordinatord.protocol.ip_addresses import plain_address
from coordinatord.protocol.schema import check
from coordinatord.runtime.logs import fields
from coordinatord.security.browser_sessions import LINK_S, SESSION_S
from coordinatord.security.gatekeeper import Gatekeeper
from coordinatord.server.http.browser_guard import is_on_this_host
from coordinatord.server.http.request_body import read_body
from coordinatord.server.http.responses import error_response, respond
from coordinatord.server.sessions.connections import CALLER

log = logging.getLogger(__name__)

PAGE_LINK_PATH = "/v1/page/link"
PAGE_SESSION_PATH = "/v1/page/session"


def cookie_name(pin: str) -> str:
    """Return the name of the cookie of the coordinator with this key.

    The pin is in the name because browsers send a host's cookies to all of its ports, and another coordinator may
    listen there. The prefix makes browsers reject a cookie that was set without TLS, or by a subdomain of this host
    (RFC 6265bis, 4.1.3).
    """
    return f"__Host-coordinatord-{pin[:16]}"


def viewer_of(request: web.Request) -> PageViewer:
    """Return the viewer's token and rights, from the page's request for data.

    `may_act` agrees with `browser_guard`, which lets a page act only over TLS or on the coordinator's host.
    """
    token = CALLER.get().token
    is_admin = token is None or token.role.may(Role.ADMIN)
    return PageViewer(
        token="" if token is None else token.name,
        may_act=is_admin and (request.secure or is_on_this_host(request.remote)),
    )


class PageAccess:
    """The handlers that make links and open sessions.

    A session is opened without a token (`access_guard`): the code of the link takes its place.
    """

    def __init__(self, gatekeeper: Gatekeeper | None, cookie: str) -> None:
        """Open sessions at the gatekeeper, in cookies of this name; without a gatekeeper no session is needed."""
        self._gatekeeper = gatekeeper
        self.cookie = cookie
        self.routes = [web.post(PAGE_LINK_PATH, self._make_link), web.post(PAGE_SESSION_PATH, self._open_session)]

    async def _make_link(self, request: web.Request) -> web.Response:
        await read_body(request, lambda body: check(body, PageLinkBody, "request"))  # it has to be empty
        caller = CALLER.get()
        if self._gatekeeper is None or caller.token is None:  # a gatekeeper lets nobody come here without a token
            return respond(request, PageLinkAnswer(code="", valid_s=0, role="admin"))
        if caller.in_browser:  # it could prolong its session for ever
            text = "a page cannot make a link: run nodeclient page"
            return error_response(request, HTTPStatus.FORBIDDEN, "foreign", text)
        code = self._gatekeeper.browsers.new_link(caller.token)
        log.info("a link to the page was made with the token %s", caller.name, extra=fields("page_link_made"))
        return respond(request, PageLinkAnswer(code=code, valid_s=LINK_S, role=caller.token.role))

    async def _open_session(self, request: web.Request) -> web.Response:
        wanted = await read_body(request, lambda body: check(body, PageSessionBody, "request"))
        if self._gatekeeper is None:
            return respond(request, PageSessionAnswer(token="", role="admin"))
        peer = plain_address(request.remote or "")
        secret, token = self._gatekeeper.open_session(wanted.code, peer)
        answer = respond(request, PageSessionAnswer(token=token.name, role=token.role))
        answer.set_cookie(self.cookie, secret, max_age=int(SESSION_S), secure=True, httponly=True, samesite="Strict")
        text = "a browser was let in with the rights of the token %s"
        log.info(text, token.name, extra=fields("page_opened", peer=peer, role=token.role))
        return answer
