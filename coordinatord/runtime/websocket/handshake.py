"""Makes and checks the handshake of a WebSocket (RFC 6455, section 4): an HTTP/1.1 upgrade request and its answer."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha1

from coordinatord.protocol.errors import OperationalError

VERSIONS = frozenset({"13", "8", "7"})
"""The versions of the WebSocket protocol with the same frames and handshake; 13 is that of the RFC."""

SALT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""A constant of RFC 6455, 1.3: the answer has the hash of the client's key followed by it."""

KEY = re.compile(r"[A-Za-z0-9+/]{21}[AQgw]==")
"""A client's key: 16 bytes in base64."""

END_OF_HEAD = b"\r\n\r\n"

HEAD_BYTES_MAX = 8 * 1024
"""The limit of a head: our request and answer have some 250 bytes each, and proxies may add as many."""

SWITCHED = 101
"""The HTTP status of an accepted upgrade."""

HEADERS = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)+\r\n")
"""The headers of a request, one a line (RFC 9110, 5.5 and 5.6.2), and the empty line."""

SWITCHING = (
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Accept: {}\r\n\r\n"
)

REASON = "Coordinatord-Reason"
"""The header that tells a client why its upgrade was rejected, because clients do not read the body."""

STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")
"""The beginning of an answer."""


class HandshakeError(OperationalError):
    """One end rejects the WebSocket. State: nothing has changed."""

    def __init__(
        self, text: str, status: int | None = None, challenge: str = "", location: str = "", reason: str = ""
    ) -> None:
        """Make the error with the status and three headers of the HTTP answer, if there was one.

        `challenge` is `WWW-Authenticate`, `location` is `Location`, and `reason` is `Coordinatord-Reason`.
        """
        super().__init__(text)
        self.reason = reason
        self.status = status
        self.challenge = challenge
        self.location = location


def accepted(key: str) -> str:
    """Return the `Sec-WebSocket-Accept` of the answer to a client's key."""
    return b64encode(sha1(key.encode() + SALT, usedforsecurity=False).digest()).decode()


def answer_to(headers: Mapping[str, str]) -> bytes:
    """Check a request with these headers, and return the whole answer. Raises `HandshakeError`.

    Names are in lower case. The answer accepts no extension and no subprotocol.
    """
    if "transfer-encoding" in headers or headers.get("content-length", "0").strip() != "0":
        raise HandshakeError("the request has a body, which would be read as messages")
    if headers.get("upgrade", "").strip().lower() != "websocket":
        text = "this is for WebSockets: the request has no `Upgrade: websocket`: does a proxy take it out?"
        raise HandshakeError(text)
    if "upgrade" not in (token.strip().lower() for token in headers.get("connection", "").split(",")):
        raise HandshakeError("the request has no `Connection: upgrade`: does a proxy take it out?")
    if (version := headers.get("sec-websocket-version", "").strip()) not in VERSIONS:
        raise HandshakeError(f"version {version[:20]!r} of the WebSocket protocol is not supported, but 13 is")
    key = headers.get("sec-websocket-key", "").strip()
    if not KEY.fullmatch(key):
        raise HandshakeError(f"the Sec-WebSocket-Key {key[:40]!r} is not 16 bytes in base64")
    return SWITCHING.format(accepted(key)).encode()


def with_reason(text: str) -> dict[str, str]:
    """Return the header that tells a client why its upgrade was rejected."""
    return {REASON: text.encode("ascii", "replace").decode()}


def headers_of(head: bytes) -> dict[str, str] | None:
    """Parse the headers of a request, up to the empty line; names are in lower case.

    None if something is unusual, such as a duplicate name, which only a full HTTP parser can handle.
    """
    if not HEADERS.fullmatch(head):
        return None
    lines = head.decode("latin-1").split("\r\n")[:-2]
    headers = _by_name(lines)
    return headers if len(headers) == len(lines) else None


def _by_name(lines: list[str]) -> dict[str, str]:
    """Return the values of headers by name in lower case; the last value of a duplicate name counts."""
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def new_key() -> str:
    """Return a random key for a client's request."""
    return b64encode(os.urandom(16)).decode()


def request_for(host: str, path: str, key: str, more: Mapping[str, str]) -> bytes:
    """Return a client's whole request; `host` has the port, and `more` are further headers."""
    lines = (
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
        *(f"{name}: {value}" for name, value in more.items()),
        "",
        "",
    )
    return "\r\n".join(lines).encode()


def check_answer(head: bytes, key: str) -> None:
    """Check the head of the answer to a request with this key. Raises `HandshakeError`.

    Only the headers that prove the upgrade are checked, because a proxy may add others.
    """
    found = STATUS.match(head)
    if found is None:
        raise HandshakeError("the answer is not HTTP")
    status, headers = int(found[1]), _by_name(head.decode("latin-1").split("\r\n")[1:-2])
    if status != SWITCHED:
        challenge, location = headers.get("www-authenticate", ""), headers.get("location", "")
        reason = headers.get(REASON.lower(), "")
        raise HandshakeError(f"the answer has the status {status}", status, challenge, location, reason)
    if headers.get("upgrade", "").lower() != "websocket" or headers.get("sec-websocket-accept") != accepted(key):
        raise HandshakeError("the answer belongs to another request", status)
