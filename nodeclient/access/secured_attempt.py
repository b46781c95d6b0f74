"""One attempt to reach a coordinator: it makes the TLS context, checks the server's key, and finds the token to send.

Both clients use it: that of a node's session, and that of an operator's requests. `SecuredAttempt.headers` has the
token only after the handshake has checked the server's key, so it is sent to no other server.
"""

from __future__ import annotations

import socket
import ssl

from coordinatord.protocol.access_token import BEARER, AccessToken, Role
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.runtime.pinned_tls import PinError, authority_context, load_certificate, pinned_context, why_unusable
from nodeclient.access.keyring import AccessSettings, KeyringError, find_keyring, keyring_of

PROBE_WITHIN_S = 3.0
"""How long the connection and the handshake may each take in a test for TLS, which follows a failure without TLS."""

_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"}
)
"""OpenSSL's names of errors for an answer without TLS."""

_OLDER_TLS = frozenset(
    {"TLSV1_ALERT_PROTOCOL_VERSION", "SSLV3_ALERT_HANDSHAKE_FAILURE", "UNSUPPORTED_PROTOCOL", "WRONG_SSL_VERSION"}
)
"""OpenSSL's names of errors for a server with an older TLS, which may find no common cipher."""

_WANTS_CERTIFICATE = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
"""OpenSSL's name of the alert to a client without a certificate."""

_OTHER_NAME = frozenset({62, 64})
"""OpenSSL's codes of a certificate for other host names, and for other addresses."""

_CERTIFICATE_REJECTED = {
    "TLSV1_ALERT_UNKNOWN_CA": "it is of another authority",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it is malformed, or not yet valid",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it is not one for clients",
}
"""OpenSSL's names of the alerts of a server that rejects the client's certificate, and their meanings."""


class AccessError(OperationalError):
    """A coordinator answers, but this client must not send it anything; the text says why, and what to do."""


class WrongAccessError(AccessError):
    """This client's tokens are unusable, or the coordinator does not accept them, or this client's --insecure.

    A node retries only for a short time, in which the coordinator learns of a new token.
    """


class PlaintextError(AccessError):
    """The coordinator uses no TLS, although a token was found. Nothing was sent."""


class SecuredAttempt:
    """One attempt to reach one coordinator.

    A client connects with `context`, and sends `headers`. If that fails, `explain` says why. After an attempt without a
    context it asks `speaks_tls`, and reports `tls_required` if that is so.
    """

    def __init__(
        self, settings: AccessSettings, endpoint: Endpoint, role: Role, proven: AccessToken | None = None
    ) -> None:
        """Look for tokens for requests of a `role` to the coordinator at `endpoint`.

        A `proven` token is one that a coordinator has accepted from this process before. It is reused, because its file
        may be gone. Other tokens are looked up only if a coordinator with another key answers.

        Raises `WrongAccessError`, and `AccessError` if a file with certificates cannot be used.
        """
        self._settings = settings
        self._proven = proven
        self._endpoint = endpoint
        self._role = role
        self._pin = ""
        """The pin of the coordinator, once the handshake has checked its key."""
        self.context: ssl.SSLContext | None = None
        """The context to connect with; None without TLS."""
        self.sent_token: AccessToken | None = None
        """The token in the last `headers`; None before, and without TLS."""
        try:
            self._keyring = find_keyring(settings) if proven is None else keyring_of(proven)
        except KeyringError as error:
            raise WrongAccessError(str(error)) from error
        if self._keyring.source:
            self.context = self._make_context()

    @property
    def token_source(self) -> str:
        """The place where tokens were found, for people; empty if there are none."""
        return self._keyring.source

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request; valid once connected. Raises `AccessError`."""
        if self.context is None:
            return {}
        self.sent_token = self._proven
        if self.sent_token is None or not (self._trusts_any_key or self.sent_token.pin == self._pin):
            try:
                self.sent_token = self._keyring.token_for(self._pin, self._role, any_key=self._trusts_any_key)
            except KeyringError as error:
                raise AccessError(f"{self._endpoint}: {error}") from error
        return {"Authorization": f"{BEARER}{self.sent_token.text}"}

    def explain(self, error: BaseException) -> AccessError | None:
        """Explain a failed connection by TLS, keys or tokens; return None for any other cause."""
        if isinstance(error, AccessError):
            return error
        if not isinstance(error, ssl.SSLError):
            return None
        where = self._endpoint
        match error:
            case PinError():
                # A given token stays wrong, but the user's directory may get a token for this key while a node retries.
                kind = WrongAccessError if self._settings.is_given else AccessError
                return kind(f"{where}: {error.args[0]}")
            case ssl.SSLCertVerificationError():
                why = error.verify_message.rstrip(".")
                remedy = "give --coord a name that it has" if error.verify_code in _OTHER_NAME else "see --tls-ca"
                text = f"{where}: its certificate is not to be trusted: {why}; {remedy}"
            case _ if error.reason == _WANTS_CERTIFICATE:
                text = f"{where} wants a certificate of this client: give --tls-cert and --tls-key"
            case _ if error.reason in _CERTIFICATE_REJECTED and self._settings.certificate is not None:
                reason = _CERTIFICATE_REJECTED[error.reason]
                text = f"{where} does not trust {self._settings.certificate}, the certificate of this client: {reason}"
            case _ if error.reason in _OLDER_TLS:
                text = f"{where} does not speak TLS 1.3: have the proxy there allow it, or pass TLS through"
            case _ if error.reason in _NOT_TLS:
                return PlaintextError(
                    f"{where} uses no TLS, and there is a token here ({self._keyring.source}): nothing was"
                    " sent, somebody may be in between. If it was started with --insecure, give --insecure here too"
                )
            case _:
                text = f"{where}: no secure connection: {error.reason or error}"
        return AccessError(text)

    def tls_required(self) -> AccessError:
        """Return the error for a coordinator that needs TLS, after an attempt without TLS."""
        if self._settings.insecure:
            return WrongAccessError(f"{self._endpoint} speaks TLS only: leave --insecure out")
        wanted = "" if self._role is Role.JOIN else f" --role {self._role}"
        return AccessError(
            f"{self._endpoint} wants a token, and there is none here: run coordinatord token new{wanted} --output FILE"
            " where it runs, with its --state-dir if it has one, copy FILE, and give it by --token-file FILE"
        )

    def speaks_tls(self, address: str | None, within_s: float = PROBE_WITHIN_S) -> bool:
        """Whether the endpoint answers a TLS handshake, possibly with an older TLS; nothing else is sent.

        With an `address`, its name is not looked up. The connection and the handshake may each take `within_s` seconds,
        so an event loop calls it in a thread.
        """
        place = (address or self._endpoint.host, self._endpoint.port)
        try:
            with socket.create_connection(place, within_s) as connection:
                # Any key will do, since no secret is sent.
                pinned_context(lambda _: None).wrap_socket(connection).close()
        except ssl.SSLError as error:
            return error.reason in _OLDER_TLS
        except (OSError, UnicodeError):
            return False
        return True

    @property
    def _trusts_any_key(self) -> bool:
        """Whether an authority vouches for the coordinator, whatever its key is."""
        return self._settings.authorities is not None

    def _make_context(self) -> ssl.SSLContext:
        settings = self._settings
        named = f"{settings.authorities}"
        try:
            if settings.authorities is None:
                context = pinned_context(self._check_pin)
            else:
                context = authority_context(self._check_pin, str(settings.authorities))
            if settings.certificate is not None:
                named = f"{settings.certificate} with the key {settings.key}"
                load_certificate(context, settings.certificate, settings.key)
        except OSError as error:
            text = f"{named} cannot be used: {why_unusable(error)}: see --tls-ca and --tls-cert"
            raise AccessError(text) from error
        return context

    def _check_pin(self, pin: str) -> None:
        """Check the pin of the server's key, within the handshake. Raises `PinError`."""
        if not self._trusts_any_key and pin not in self._keyring.tokens and self._proven is not None:
            try:
                self._keyring = find_keyring(self._settings)
            except KeyringError as error:
                raise PinError(f"its key is another one than before, and {error}") from error
        if not self._trusts_any_key and pin not in self._keyring.tokens:
            raise PinError(
                f"its key matches no token in {self._keyring.source}, so nothing was sent: somebody else"
                " may answer in its place, it was set up anew, or the token was made in another state directory: make"
                " one with the --state-dir of the running coordinatord"
            )
        self._pin = pin
