"""What takes tokens and certificates of strangers apart. Each target takes one input, as in `byte_targets`."""

from contextlib import suppress
from hashlib import sha256

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from coordinatord.protocol.access_token import BEARER, AccessToken, Role, TokenFormError, parse_token, parse_tokens
from coordinatord.runtime.pinned_tls import CertificateError, base32_of, pin_of
from coordinatord.security.browser_sessions import BrowserSessions
from coordinatord.security.gatekeeper import ADDRESSES_MAX, DeniedError, Gatekeeper
from coordinatord.security.token_store import KnownToken, TokenStore
from tests.fuzz.byte_targets import check_brief
from tests.fuzz.choices import Choices

PIN = "a" * 52

SECRETS = {role: letter * 52 for role, letter in zip(Role, "bcd", strict=True)}
"""The secrets that the gatekeeper of a target knows."""


def token(data: bytes) -> None:
    """Read a token, and a file of tokens; what is one comes back as it was, and no error repeats what was read."""
    choices = Choices(data)
    text = choices.rest().decode("utf-8", "replace")
    for read in (parse_token, parse_tokens):
        try:
            found = read(text)
        except TokenFormError as error:
            check_brief(error, *([text] if len(text) >= len(PIN) else []))
        else:
            for access_token in found if isinstance(found, tuple) else (found,):
                assert access_token.text in text
                shown = repr(access_token).replace(access_token.pin, "")  # a stranger's secret may be the pin itself
                assert access_token.secret not in shown


def header(data: bytes) -> None:
    """Ask to be let in with a header: only a known secret opens, for no more than its role, and nothing grows."""
    choices = Choices(data)
    gatekeeper = gate()
    wanted = choices.of(tuple(Role))
    known = choices.of((None, *Role))
    peer = choices.of(("10.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.1", "", "no address"))
    junk = choices.rest().decode("latin-1")
    sent = junk if known is None else f"{BEARER}{AccessToken(PIN, known, SECRETS[known]).text}{junk}"
    try:
        caller = gatekeeper.admit(sent, wanted, peer, junk or None)
    except DeniedError as error:
        check_brief(error, *SECRETS.values())
    else:
        shown = next(role for role, secret in SECRETS.items() if secret in sent)
        assert caller.name == shown.value
        assert shown.may(wanted)
    assert len(gatekeeper._failures) <= min(ADDRESSES_MAX, 1)


def gate() -> Gatekeeper:
    """Return a gatekeeper that knows a token of each role."""
    store = TokenStore(None)
    store.tokens = tuple(
        KnownToken(role.value, role, "*", sha256(secret.encode()).hexdigest(), 0.0) for role, secret in SECRETS.items()
    )
    return Gatekeeper(store, BrowserSessions(b"", lambda: 0.0), lambda: 0.0)


def certificate(data: bytes) -> None:
    """Work out the pin of a certificate: it is that of the key which a library for certificates finds."""
    try:
        pin = pin_of(data)
    except CertificateError as error:
        check_brief(error)
        return
    with suppress(ValueError, UnsupportedAlgorithm, TypeError, x509.InvalidVersion):  # it is none, or of another kind
        key = x509.load_der_x509_certificate(data).public_key()
        form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        written = key.public_bytes(*form)
        # A key that could be written in another way is no key that the library writes back as it was.
        assert written not in data or pin == base32_of(sha256(written).digest())
