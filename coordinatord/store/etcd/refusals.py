"""Turns refusals of etcd into errors with a remedy. The codes are gRPC's; the texts are in etcd's `rpctypes`."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from coordinatord.protocol.text import clip
from coordinatord.store.interface import StoreError


class Code(IntEnum):
    """Codes of gRPC that decide what is done next."""

    CANCELLED = 1
    UNKNOWN = 2
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


UNANSWERED = frozenset({Code.CANCELLED, Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE})
"""Codes that do not tell whether the request was done. A member that ends cancels what it has not answered."""


class EtcdRefusedError(StoreError):
    """A member has answered, and refuses. State: nothing of the request is done."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class TokenRefusedError(EtcdRefusedError):
    """The token of our user has run out, or is older than the last change of users and roles: a new one is needed."""


class EtcdAwayError(StoreError):
    """No member has answered for the cluster. State: a request that changes something may be done all the same."""


_TEXTS = (
    (
        "database space exceeded",
        "it is out of space: make room or raise its quota, and then etcdctl alarm disarm",
    ),
    ("authentication failed", "it does not know this user with this password: see --etcd-user-file"),
    ("user name is empty", "it wants a user and a password: see --etcd-user-file"),
    ("permission denied", "this user may not read and write the keys below the prefix: etcdctl role grant-permission"),
    ("request is too large", "it takes no request of this size: leave its --max-request-bytes at 1.5 MiB or more"),
    ("too many requests", "it is overloaded: does somebody else use it heavily, or is its disk slow?"),
    ("client connection is closing", "this member ends"),
    ("no leader", "it has no leader: has it lost its majority?"),
    ("request timed out", "it cannot decide: has it lost its majority, or is its disk slow?"),
)
"""Parts of etcd's messages, each with the text that users see before the message."""


_OLD_TOKEN = ("revision of auth store is old", "revision in header is old")
"""Parts of messages about a token of `--auth-token jwt` after a change of users and roles. Their code is that of a bad
request."""


def refused(place: object, answer: Any, status: int) -> EtcdRefusedError | EtcdAwayError:
    """Return the error for an answer that is not 200 OK."""
    data = answer if isinstance(answer, dict) else {}
    message = str(data.get("message") or data.get("error") or f"HTTP {status}")
    code = data.get("code")
    remedy = next((ours for theirs, ours in _TEXTS if theirs in message), "it refuses a request")
    text = f"etcd {place}: {remedy} ({clip(message, 200)})"
    if not isinstance(code, int) or code in UNANSWERED:
        return EtcdAwayError(text)
    if code == Code.UNAUTHENTICATED or any(theirs in message for theirs in _OLD_TOKEN):
        return TokenRefusedError(code, text)
    return EtcdRefusedError(code, text)
