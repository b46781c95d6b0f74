"""A request to upgrade is answered as RFC 6455 wants it, or refused in words."""

import pytest

from coordinatord.runtime.websocket.handshake import HandshakeError, accepted, answer_to, headers_of

ASKING = {
    "host": "server.example.com",
    "upgrade": "websocket",
    "connection": "Upgrade",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version": "13",
}


def test_the_example_of_the_rfc_is_answered_as_there() -> None:
    assert accepted("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer_to(ASKING)


@pytest.mark.parametrize(
    "changes",
    [
        {"connection": "keep-alive, Upgrade"},
        {"upgrade": "WebSocket"},
        {"sec-websocket-version": "8"},
        {"sec-websocket-extensions": "permessage-deflate; client_max_window_bits"},
        {"sec-websocket-protocol": "chat"},
    ],
)
def test_what_is_offered_beside_is_not_taken_up(changes: dict[str, str]) -> None:
    assert answer_to(ASKING | changes) == answer_to(ASKING)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"upgrade": "h2c"}, "no `Upgrade: websocket`"),
        ({"connection": "keep-alive"}, "no `Connection: upgrade`"),
        ({"sec-websocket-version": "12"}, "version '12' of the WebSocket protocol"),
        ({"sec-websocket-key": "short"}, "'short' is not 16 bytes in base64"),
        ({"sec-websocket-key": "dGhlIHNhbXBsZSBub25jZR=="}, "not 16 bytes"),
    ],
)
def test_a_request_that_asks_for_something_else_is_refused_in_words(changes: dict[str, str], words: str) -> None:
    with pytest.raises(HandshakeError, match=words):
        answer_to(ASKING | changes)


def test_headers_are_read_without_regard_to_case_and_blanks() -> None:
    assert headers_of(b"Host:x\r\nUPGRADE: \twebsocket \r\n\r\n") == {"host": "x", "upgrade": "websocket"}


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\r\n",
        b"Host: x\r\n",
        b"Host: x\r\nhost: y\r\n\r\n",
        b"Host : x\r\n\r\n",
        b"Host: x\r\n folded\r\n\r\n",
        b"Host: x\x00\r\n\r\n",
        b"Host: x\n\r\n\r\n",
        b"no colon\r\n\r\n",
    ],
)
def test_what_is_unusual_is_for_a_full_parser_to_judge(head: bytes) -> None:
    assert headers_of(head) is None
