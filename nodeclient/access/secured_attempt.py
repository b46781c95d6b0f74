"""One attempt to reach a coordinator: over TLS or in the clear, its key compared, and the token that may be sent then.

Both clients use it: the one of a node's session and the one of an operator's requests. What they have in common is the
context, in whose handshake the key is compared, and the header, which exists only after that.
"""

from __future__ import annotations

import socket
import ssl

from coordinatord.protocol.access_token import BEARER, AccessToken, Role
from coordinatord.protocol.errors import OperationalError
from coordinatord.runtime.pinned_tls import PinError, authority_context, pinned_context
from nodeclient.access.endpoint import Endpoint
from nodeclient.access.keyring import AccessSettings, KeyringError, find_keyring

PROBE_WITHIN_S = 3.0
"""How long it may take to find out whether something speaks TLS, once it did not answer otherwise."""

IN_THE_CLEAR = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"}
)
"""What OpenSSL calls an answer that is no TLS."""

WANTS_CERTIFICATE = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
"""What OpenSSL calls the alert of a server to a client that has shown no certificate."""

DISTRUSTS_CERTIFICATE = {
    "TLSV1_ALERT_UNKNOWN_CA": "it is of another authority",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it is malformed, or not yet valid",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it is not one for clients",
}
"""What OpenSSL calls the alert of a server that does not trust the client's certificate, and what it means."""


class AccessError(OperationalError):
    """A coordinator answers, but this client must not speak with it; the text says why, and what to do."""


class ClearError(AccessError):
    """The coordinator speaks in the clear, although there is a token for one. Nothing was sent."""


class SecuredAttempt:
    """One attempt."""

    def __init__(
        self, settings: AccessSettings, endpoint: Endpoint, role: Role, proven: AccessToken | None = None
    ) -> None:
        """Look for tokens with which to be `role` there. Raises `AccessError`.

        A `proven` token, by which this process was let in before, is shown again to the coordinator that it is for.
        """
        self._settings = settings
        self._proven = proven
        self._endpoint = endpoint
        self._role = role
        self._pin = ""
        """The key of the coordinator, once it was compared."""
        self.context: ssl.SSLContext | None = None
        """The context to connect with; None for an attempt in the clear."""
        self.shown: AccessToken | None = None
        """The token that was sent; None before."""
        try:
            self._keyring = find_keyring(settings)
        except KeyringError as error:
            raise AccessError(f"{endpoint}: {error}") from error
        if not settings.insecure and self._keyring.source:
            self.context = self._make_context()

    @property
    def headers(self) -> dict[str, str]:
        """What is sent with a request once there is a connection. Raises `AccessError`."""
        if self.context is None:
            return {}
        any_key = self._settings.authorities is not None
        self.shown = self._proven
        if self.shown is None or not (any_key or self.shown.pin == self._pin):
            try:
                self.shown = self._keyring.token_for(self._pin, self._role, any_key=any_key)
            except KeyringError as error:
                raise AccessError(f"{self._endpoint}: {error}") from error
        return {"Authorization": f"{BEARER}{self.shown.text}"}

    def explain(self, error: BaseException) -> AccessError | None:
        """Return the error for a failed connection, if it is about who speaks to whom."""
        if isinstance(error, AccessError):
            return error
        if not isinstance(error, ssl.SSLError):
            return None
        where = self._endpoint
        match error:
            case PinError():
                words = f"{where}: {error.args[0]}"
            case ssl.SSLCertVerificationError():
                words = f"{where}: its certificate is not to be trusted: {error.verify_message}"
            case _ if error.reason == WANTS_CERTIFICATE:
                words = f"{where} wants a certificate of this client: give --tls-cert and --tls-key"
            case _ if error.reason in DISTRUSTS_CERTIFICATE and self._settings.certificate is not None:
                why = DISTRUSTS_CERTIFICATE[error.reason]
                words = f"{where} does not trust {self._settings.certificate}, the certificate of this client: {why}"
            case _ if error.reason in IN_THE_CLEAR:
                return ClearError(
                    f"{where} speaks in the clear, and there is a token here ({self._keyring.source}): nothing was"
                    " sent, somebody may be in between. If it was started with --insecure, give --insecure here too"
                )
            case _:
                words = f"{where}: no secure connection: {error.reason or error}"
        return AccessError(words)

    def locked_out(self) -> AccessError:
        """Return the error for a coordinator that speaks TLS where this attempt did not."""
        if self._settings.insecure:
            return AccessError(f"{self._endpoint} speaks TLS only: leave --insecure out")
        return AccessError(
            f"{self._endpoint} wants a token, and there is none here: run coordinatord token new --output FILE where it"
            " runs, copy FILE, and give it by --token-file FILE"
        )

    def speaks_tls(self) -> bool:
        """Whether something answers in TLS there; nothing is sent but the beginning of a handshake.

        This waits for `PROBE_WITHIN_S` at most, so an event loop calls it in a thread.
        """
        try:
            with socket.create_connection((self._endpoint.host, self._endpoint.port), PROBE_WITHIN_S) as plain:
                pinned_context(_trust_all).wrap_socket(plain).close()
        except (OSError, UnicodeError):
            return False
        return True

    def _make_context(self) -> ssl.SSLContext:
        settings = self._settings
        try:
            if settings.authorities is None:
                context = pinned_context(self._compare)
            else:
                context = authority_context(self._compare, str(settings.authorities))
            if settings.certificate is not None:
                context.load_cert_chain(settings.certificate, settings.key)
        except OSError as error:
            named = settings.authorities or settings.certificate
            raise AccessError(
                f"{named} cannot be used: {error.strerror or error}: see --tls-ca and --tls-cert"
            ) from error
        return context

    def _compare(self, pin: str) -> None:
        """Compare the key of the server, as a part of the handshake. Raises `PinError`."""
        if self._settings.authorities is None and pin not in self._keyring.pins:
            raise PinError(
                f"its key is none that the tokens in {self._keyring.source} are for, so nothing was sent: somebody else"
                " may answer in its place, or it was set up anew; then fetch its new token"
            )
        self._pin = pin


def _trust_all(_: str) -> None:
    """Compare nothing, since nothing secret is sent."""
