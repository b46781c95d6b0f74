"""Makes and loads the coordinator's key and certificate: our own, or those of an organisation.

Clients check only the key, because tokens have its hash, the *pin*. TLS also needs a certificate; our own one is
self-signed and never expires. Programs that check names, such as Prometheus, may use the name `coordinatord`.
"""

from __future__ import annotations

import hmac
import os
import ssl
import tempfile
from pathlib import Path

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.runtime.pinned_tls import CertificateError, load_certificate, pin_of, why_unusable
from coordinatord.runtime.private_files import PrivateFileError, locked_directory, read_private, write_private

KEY, CERTIFICATE = "key.pem", "certificate.pem"
"""The names of the files with our own key and certificate."""

NAME = "coordinatord"
"""The name in our own certificate."""


class IdentityError(OperationalError):
    """A key or a certificate cannot be used."""

    exit_code = ExitCode.USAGE


class Identity(Struct, frozen=True):
    """The files of the key and the certificate."""

    certificate: Path
    key: Path

    def load_into(self, context: ssl.SSLContext) -> str:
        """Load this certificate into a new context; return the pin of its key. Raises `IdentityError`.

        A key with a password is rejected, because a daemon cannot ask for one.
        """
        try:
            load_certificate(context, self.certificate, self.key)
            return pin_of(ssl.PEM_cert_to_DER_cert(_first_certificate(self.certificate)))
        except (OSError, ValueError, CertificateError) as error:
            text = f"the certificate {self.certificate} with the key {self.key}: {why_unusable(error)}"
            raise IdentityError(text) from error

    def validity(self) -> tuple[float, float]:
        """Return from when until when this certificate is valid, in seconds since 1970. Raises `IdentityError`."""
        # The library takes 60 ms to load, and our own certificate never expires.
        from cryptography import x509  # noqa: PLC0415

        try:
            shown = x509.load_pem_x509_certificate(_first_certificate(self.certificate).encode())
            return shown.not_valid_before_utc.timestamp(), shown.not_valid_after_utc.timestamp()
        except (OSError, ValueError) as error:
            raise IdentityError(f"the certificate {self.certificate}: {why_unusable(error)}") from error

    def derived_key(self, purpose: str) -> bytes:
        """Derive a key for another purpose. It is the same each time. Raises `IdentityError`."""
        try:
            # By RFC 5869, 2.2, the result does not reveal the original key.
            return hmac.digest(purpose.encode(), self.key.read_bytes(), "sha256")
        except OSError as error:
            raise IdentityError(f"the key {self.key} cannot be read: {error.strerror}") from error


def own_identity(directory: Path) -> Identity:
    """Return our own key and certificate in a directory; make missing files. Raises `PrivateFileError`.

    A certificate without its key is an error, because existing tokens have the hash of the lost key.
    """
    identity = Identity(directory / CERTIFICATE, directory / KEY)
    if all(read_private(path) is not None for path in (identity.key, identity.certificate)):
        return identity
    with locked_directory(directory):  # a starting daemon and `coordinatord token` may both make the files
        key, certificate = read_private(identity.key), read_private(identity.certificate)
        if key is None and certificate is not None:
            text = f"{identity.key} is missing: put it back, or remove {directory} and hand out new tokens"
            raise PrivateFileError(text)
        if key is None:
            key = _new_key()
            write_private(identity.key, key)
        if certificate is None:
            try:
                write_private(identity.certificate, _certificate_for(key))
            except (TypeError, ValueError) as error:  # a key with a password is a TypeError
                text = f"{identity.key} is no key that coordinatord has made: put the right one back"
                raise PrivateFileError(text) from error
    return identity


def ephemeral_identity() -> Identity:
    """Return a new key and its certificate in files without a name, which end with this process.

    They are for a coordinator without a state directory.
    """
    key = _new_key()
    return Identity(_nameless_file(_certificate_for(key)), _nameless_file(key))


def _nameless_file(text: str) -> Path:
    """Write a file that only this process can find; return its path, since TLS reads only files."""
    with tempfile.TemporaryFile() as file:  # not all builds of Python have `os.memfd_create`
        file.write(text.encode())
        return Path(f"/proc/self/fd/{os.dup(file.fileno())}")


def _new_key() -> str:
    """Make a key in PEM, of a kind that all browsers and libraries support."""
    # The library takes 60 ms to load, and only the first start needs it.
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(*form).decode()


def _certificate_for(key_text: str) -> str:
    """Make the certificate of a key, both in PEM. Raises `TypeError` and `ValueError` if the key is not ours."""
    from datetime import UTC, datetime  # noqa: PLC0415
    from ipaddress import ip_address  # noqa: PLC0415
    from socket import gethostname  # noqa: PLC0415

    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = serialization.load_pem_private_key(key_text.encode(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("it is a key of another kind")  # noqa: TRY004 - the content of the text is wrong, not its type
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    hosts = dict.fromkeys((NAME, "localhost", gethostname()))
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts if host.isascii()]
    names += [x509.IPAddress(ip_address(address)) for address in ("127.0.0.1", "::1")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        # By RFC 5280, 4.1.2.5, this date means that it never expires.
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _first_certificate(path: Path) -> str:
    """Return the first certificate in a file, which is the server's own. Raises `OSError` and `ValueError`."""
    text = path.read_text(encoding="ascii")
    end = text.find(ssl.PEM_FOOTER)
    start = text.find(ssl.PEM_HEADER)
    if start < 0 or end < start:
        raise ValueError("there is no certificate in PEM in it")
    return text[start : end + len(ssl.PEM_FOOTER)] + os.linesep
