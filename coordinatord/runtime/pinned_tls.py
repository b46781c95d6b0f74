"""Makes TLS contexts that verify a server by the *pin*, the hash of its public key.

Access tokens have the pin of their coordinator, so clients need no certificate authority. The check is part of the
handshake, so nothing is sent to another server, and any library can use the contexts.
"""

from __future__ import annotations

import ssl
from base64 import b32encode
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from typing import Any

from coordinatord.protocol.errors import OperationalError

_INTEGER, _SEQUENCE, _VERSION = 0x02, 0x30, 0xA0
"""Tags, the first bytes of values in DER, the encoding of certificates (X.690)."""

_LONG = 0x80
"""The bit of a DER length that marks the long form: the length follows in further bytes."""

_HOSTS = frozenset({"DNS", "IP Address"})
"""The kinds of alternative names of a host, as in `getpeercert`."""

_BEFORE_KEY = (_INTEGER, _SEQUENCE, _SEQUENCE, _SEQUENCE, _SEQUENCE)
"""The fields of a certificate before its key: serial number, algorithm, issuer, validity, subject (RFC 5280, 4.1)."""


class CertificateError(OperationalError):
    """A certificate is malformed."""


class PinError(OperationalError, ssl.SSLError):
    """The server's key is not the one that is trusted. Nothing was sent to it."""


def pin_of(certificate: bytes) -> str:
    """Return the pin of a certificate in DER: SHA-256 of its public key. Raises `CertificateError`.

    It accepts only strict DER. In other encodings, which OpenSSL also reads, it might find another key than the one
    that OpenSSL has verified.
    """
    try:
        _, whole, _ = _first_value(certificate, _SEQUENCE)
        _, fields, _ = _first_value(whole, _SEQUENCE)
        if fields[:1] == bytes((_VERSION,)):
            _, _, fields = _first_value(fields, _VERSION)
        for kind in _BEFORE_KEY:
            _, _, fields = _first_value(fields, kind)
        key, _, _ = _first_value(fields, _SEQUENCE)
    except IndexError as error:
        raise CertificateError("a certificate ends too early") from error
    return base32_of(sha256(key).digest())


def base32_of(digest: bytes) -> str:
    """Encode 32 bytes as in tokens: base32 in lower case, without padding."""
    return b32encode(digest).decode().rstrip("=").lower()


def why_unusable(error: Exception) -> str:
    """Explain an error of a file with a certificate, a key or CA certificates; name the file if the error does."""
    if not isinstance(error, ssl.SSLError):
        file = getattr(error, "filename", None)
        return (f"{file}: " if file else "") + (getattr(error, "strerror", None) or str(error))
    return "the key is of another certificate" if error.reason == "KEY_VALUES_MISMATCH" else "damaged, or not in PEM"


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Load a certificate with its key, which has no password, into a context. Raises `OSError`."""
    for file in (certificate, key or certificate):
        file.open("rb").close()  # OpenSSL's error does not say which file cannot be read
    # Without a callback, OpenSSL would ask the terminal for a password.
    context.load_cert_chain(certificate, key, password=_no_password)


def _no_password() -> str:
    raise OSError("the key wants a password: give one that wants none, in a file that only this user may read")


def pinned_context(check: Callable[[str], None]) -> ssl.SSLContext:
    """Return a client's context; `check` gets the pin of each server, and raises `PinError` to reject it.

    It checks no authority and no host name, because the key identifies the server.
    """
    context = _client_context(check)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # even so, TLS 1.3 proves that the server has the key
    return context


def authority_context(check: Callable[[str], None], authorities: str) -> ssl.SSLContext:
    """Return a client's context that checks pin, authority (a PEM file) and host name. Raises `OSError`."""
    context = _client_context(check)
    context.load_verify_locations(authorities)
    return context


def server_context(client_authorities: str | None = None) -> ssl.SSLContext:
    """Return a server's context, still without its certificate. Raises `OSError`.

    With `client_authorities`, a PEM file, clients must show a certificate of one of these authorities.
    """
    context = _ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = _ServerObject
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if client_authorities is not None:
        context.load_verify_locations(client_authorities)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


send_alert: ContextVar[Callable[[bytes], object] | None] = ContextVar("send_alert", default=None)
"""Sends bytes to the client, without blocking; raises `OSError`. A listener sets it in the task of each handshake."""

_HTTPS_ONLY = b"This port serves HTTPS only, and the request came without TLS: begin the address with https://\n"
_ANSWER_WITHOUT_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
) % (len(_HTTPS_ONLY), _HTTPS_ONLY)
"""The answer to a request over HTTP without TLS."""


class _ServerObject(ssl.SSLObject):
    """A server's connection that tells the client why the handshake has failed, before asyncio closes it.

    It sends OpenSSL's alert (RFC 8446, 6.2), which may say that a certificate is required. A request without TLS gets
    an answer over HTTP.
    """

    outgoing: ssl.MemoryBIO
    send_alert: Callable[[bytes], object] | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLError as error:
            if self.send_alert is not None:
                with suppress(OSError):  # the client has gone
                    self.send_alert(_ANSWER_WITHOUT_TLS if error.reason == "HTTP_REQUEST" else self.outgoing.read())
            raise
        self.send_alert = None  # it refers to the socket, and only a handshake needs it


class _ServerContext(ssl.SSLContext):
    """Passes `send_alert` to new connections."""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *more: Any, **named: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *more, **named)
        if isinstance(made, _ServerObject):
            made.outgoing, made.send_alert = outgoing, send_alert.get()
        return made


def _client_context(check: Callable[[str], None]) -> ssl.SSLContext:
    """Return a context that makes its connections call `check` with the server's pin at the end of a handshake."""

    class CheckedObject(ssl.SSLObject):
        """A connection of asyncio."""

        def do_handshake(self) -> None:
            super().do_handshake()
            check(_pin_of_peer(self))

    class CheckedSocket(ssl.SSLSocket):
        """A connection of a blocking socket."""

        def __del__(self) -> None:
            # CPython's `_create` leaves the socket open if the peer has reset the connection before the handshake.
            self.close()

        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            check(_pin_of_peer(self))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslobject_class, context.sslsocket_class = CheckedObject, CheckedSocket
    return context


def _pin_of_peer(connection: ssl.SSLObject | ssl.SSLSocket) -> str:
    certificate = connection.getpeercert(binary_form=True)
    if certificate is None:
        raise PinError("the server has shown no certificate")
    try:
        return pin_of(certificate)
    except CertificateError as error:
        raise PinError(str(error)) from error


def _first_value(data: bytes, kind: int) -> tuple[bytes, bytes, bytes]:
    """Parse the first DER value, which must be of this kind; return the value, its content, and the rest of `data`.

    Raises `CertificateError`, and `IndexError` if `data` ends too early.
    """
    if data[0] != kind:
        raise CertificateError("a certificate has another form than X.509 prescribes")
    size, start = data[1], 2
    if size & _LONG:
        start += size & ~_LONG
        size = int.from_bytes(data[2:start])
        # Unlike DER, BER allows this form for a small length, leading zeros, and an end marker instead of a length.
        if size < _LONG or data[2] == 0:
            raise CertificateError("a certificate is not in DER")
    end = start + size
    if end > len(data):
        raise IndexError
    return data[:end], data[start:end], data[end:]


def names_of(certificate: dict[str, Any]) -> frozenset[str]:
    """Return the host names in a certificate from `getpeercert`: common names, DNS names and IP addresses.

    It may have none: a URI or an e-mail address names no host.
    """
    subject = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    return frozenset(subject | {value for key, value in certificate.get("subjectAltName", ()) if key in _HOSTS})
