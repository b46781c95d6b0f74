"""Explains why etcd rejects a request or does not answer, and what to do about it.

What matters most is whether the request may have been executed: then only a retry of the same request is safe. The
codes are gRPC's; the texts are in etcd's `rpctypes`.
"""

from __future__ import annotations

import os
import ssl
from enum import IntEnum
from typing import Any

import aiohttp

from coordinatord.protocol.text import clip
from coordinatord.store.etcd.location import EtcdLocation
from coordinatord.store.interface import StoreError


class Code(IntEnum):
    """The codes of gRPC that are not simple rejections."""

    CANCELLED = 1
    UNKNOWN = 2
    DEADLINE_EXCEEDED = 4
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


UNCERTAIN = frozenset({Code.CANCELLED, Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE})
"""Codes after which the request may have been executed or not. A member cancels requests when it shuts down."""


class EtcdRefusedError(StoreError):
    """A member has rejected the request. State: nothing has changed."""


class TokenRefusedError(EtcdRefusedError):
    """Our user's token has expired, or users or roles have changed since it was issued: log in again."""


class EtcdAwayError(StoreError):
    """No member has answered for the cluster. State: the request may have been executed or not."""


_TEXTS = (
    ("database space exceeded", "it is out of space: make room or raise its quota, and then etcdctl alarm disarm"),
    ("authentication failed", "it does not know this user with this password: see --etcd-user-file"),
    ("user name is empty", "it wants a user and a password: see --etcd-user-file"),
    (
        "permission denied",
        "this user may not use all keys of the prefix: etcdctl role grant-permission ROLE readwrite {prefix} --prefix",
    ),
    ("request is too large", "it accepts no request of this size: set its --max-request-bytes to 1.5 MiB or more"),
    ("too many requests", "it is overloaded: does somebody else use it heavily, or is its disk slow?"),
    ("client connection is closing", "this member ends"),
    ("no leader", "it has no leader: has it lost its majority?"),
    ("request timed out", "it cannot decide: has it lost its majority, or is its disk slow?"),
)
"""Parts of etcd's messages, each with our explanation, which is shown before the message."""

_OLD_TOKEN = ("revision of auth store is old", "revision in header is old")
"""Parts of messages that reject a token of `--auth-token jwt` after a change of users or roles."""

_OTHER_NAME = (62, 64)
"""OpenSSL's error codes for a certificate of another host name, and of another address."""

_WANTS_CERTIFICATE = ("SSLV3_ALERT_BAD_CERTIFICATE", "TLSV13_ALERT_CERTIFICATE_REQUIRED")
"""The alerts to a client without a certificate: of Go before 1.21, and since."""

_IN_THE_CLEAR = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
"""The errors for an answer without TLS, in different versions of OpenSSL."""


def refused(location: EtcdLocation, answer: Any, status: int) -> EtcdRefusedError | EtcdAwayError:
    """Return the error for an answer with a status other than 200."""
    data = answer if isinstance(answer, dict) else {}
    message = str(data.get("message") or data.get("error") or f"HTTP {status}")
    code = data.get("code")
    remedy = next((ours for theirs, ours in _TEXTS if theirs in message), "it refuses a request")
    text = f"etcd {location}: {remedy.format(prefix=f'{location.prefix}/')} ({clip(message, 200)})"
    if not isinstance(code, int) or code in UNCERTAIN:
        return EtcdAwayError(text)
    if code == Code.UNAUTHENTICATED or any(theirs in message for theirs in _OLD_TOKEN):
        return TokenRefusedError(text)
    return EtcdRefusedError(text)


def why_no_answer(error: Exception, within_s: float, *, tls: bool) -> str:
    """Explain an error of a connection to a member, which had `within_s` to answer."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    match cause:
        case TimeoutError():
            why = f"no answer within {within_s:g} s"
        case ssl.SSLCertVerificationError() if cause.verify_code in _OTHER_NAME:
            why = f"its certificate is for another name than --store has: {cause.verify_message}"
        case ssl.SSLCertVerificationError():
            why = f"its certificate is of no authority that is trusted here: see --etcd-ca ({cause.verify_message})"
        case OSError() if _has_reason(cause, _WANTS_CERTIFICATE):
            why = "it wants a certificate of this client: see --etcd-cert and --etcd-key"
        case OSError() if _has_reason(cause, _IN_THE_CLEAR):
            why = "it does not speak TLS: is it etcd:// instead of etcds://?"
        case aiohttp.ServerDisconnectedError() if not tls:
            why = "it has closed the connection: does it speak TLS, and is it etcds:// instead of etcd://?"
        case aiohttp.ClientPayloadError():
            why = "the connection broke in the middle of an answer"  # aiohttp's own text is about its parser
        case OSError(errno=int(number)) if number > 0 and not isinstance(cause, ssl.SSLError):
            why = os.strerror(number)  # aiohttp's own text repeats the address
        case OSError(strerror=str(words)):
            why = words
        case _:
            why = str(cause)
    return clip(why, 200)


def _has_reason(error: OSError, reasons: tuple[str, ...]) -> bool:
    """Whether a TLS error has one of these reasons; aiohttp reports some of them only as text."""
    return any(reason in str(error) for reason in reasons)
