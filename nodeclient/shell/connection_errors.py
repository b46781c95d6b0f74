"""Says in words why a coordinator was not reached, or does not let this node in."""

from __future__ import annotations

import os
import re
import socket
from http import HTTPStatus

from coordinatord.protocol.text import clip
from coordinatord.runtime.websocket.handshake import HandshakeError
from nodeclient.access.contact_points import ELSEWHERE, leader_in
from nodeclient.access.endpoint import Endpoint

DENIALS = frozenset({401, 403, 429})
"""The HTTP statuses for a node that is not let in."""

DESCRIPTION = re.compile(r'error_description="([^"]*)"')
"""The reason in the header of a denial (RFC 6750, section 3)."""

ERRNO = re.compile(r"\[Errno (\d+)\]")
"""An error number in the text that asyncio makes of the errors of several addresses: the first one counts."""


def explain(coordinator: Endpoint, error: BaseException) -> str:
    """Return a text that explains why a coordinator was not reached."""
    match error:
        case TimeoutError():
            return f"no answer from {coordinator} in time"
        case socket.gaierror() | UnicodeError():  # UnicodeError: not a host name at all
            return f"the host name {coordinator.host} cannot be resolved"
        case HandshakeError():
            return f"{coordinator}{_describe(error)}"
        case OSError():
            several = ERRNO.search(str(error))
            number = error.errno or (int(several[1]) if several else 0)
            return f"{coordinator}: {os.strerror(number) if number else error}"
        case _:
            return f"{coordinator}: {error}"


def _describe(error: HandshakeError) -> str:
    """Return a text about an answer that opens no session, to follow the coordinator's name."""
    if error.status is None:
        return " does not answer in HTTP: is it a coordinatord?"
    if error.status == ELSEWHERE and (leader := leader_in(error.location)) is not None:
        return f" stands by: {leader} leads"
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        return f" {clip(error.reason or 'cannot serve now: does it begin to lead, or end?')}"
    if error.status == HTTPStatus.BAD_REQUEST and error.reason:
        return f": {clip(error.reason)}"
    if error.status not in DENIALS:
        return f" answers with HTTP {error.status}: is it a coordinatord?"
    found = DESCRIPTION.search(error.challenge)
    return f": {clip(found[1]) if found else f'HTTP {error.status}, this node is not let in'}"
