"""The pin is that of the key with which a server has proved who it is, whatever its certificate looks like."""

import select
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from coordinatord.runtime.pinned_tls import CertificateError, PinError, pin_of, pinned_context

DER = serialization.Encoding.DER
KEY_FORM = (DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def issued() -> tuple[trustme.LeafCert, bytes, bytes]:
    """Return a certificate, itself in DER, and its public key in DER."""
    leaf = trustme.CA().issue_cert("coord.example")
    certificate = x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes())
    return leaf, certificate.public_bytes(DER), certificate.public_key().public_bytes(*KEY_FORM)


def value(kind: int, content: bytes) -> bytes:
    """Write a value in DER."""
    size = len(content)
    if size < 128:
        return bytes((kind, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((kind, 0x80 | len(length))) + length + content


def parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the values that stand in DER one after the other, each with its content."""
    while data:
        size, start = data[1], 2
        if size & 0x80:
            start += size & 0x7F
            size = int.from_bytes(data[2:start])
        yield data[0], data[start : start + size]
        data = data[start + size :]


def with_the_key_of(victim: bytes, certificate: bytes) -> bytes:
    """Return a certificate that OpenSSL takes for the one given, with another key where its algorithm stands.

    The algorithm has no length, but an end. Whoever takes its length for 0 goes on reading within it, and finds the
    other key after as many values as come before the real one.
    """
    [(_, outer)] = parts(certificate)
    (_, body), *signature = parts(outer)
    version, serial, (_, algorithm), *rest = parts(body)
    name = next(value(*part) for part in parts(algorithm))
    crafted = b"\x30\x80" + name + b"\x30\x80" + b"\x05\x00" + victim + b"\0\0" + b"\0\0"
    fields = [value(*version), value(*serial), crafted, *(value(*part) for part in rest)]
    return value(0x30, b"".join([value(0x30, b"".join(fields)), *(value(*part) for part in signature)]))


def test_a_connection_that_is_reset_before_the_handshake_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
        select.select([connection], [], [])  # until the reset is there
        with pytest.raises(ConnectionResetError):
            pinned_context(lambda _: None).wrap_socket(connection)


def test_nobody_gets_a_token_with_a_certificate_that_is_read_in_two_ways(tmp_path: Path) -> None:
    _, _, victim = issued()
    leaf, certificate, _ = issued()
    crafted = with_the_key_of(victim, certificate)
    with pytest.raises(CertificateError, match="not in DER"):
        pin_of(crafted)

    # OpenSSL takes it: so without the pin there would be a connection.
    files = tmp_path / "crafted.pem", tmp_path / "key.pem"
    files[0].write_text(ssl.DER_cert_to_PEM_cert(crafted))
    leaf.private_key_pem.write_to_path(str(files[1]))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*files)
    received = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def answer() -> None:
            with suppress(OSError), server.wrap_socket(listener.accept()[0], server_side=True) as peer:
                received.append(peer.recv(100))

        thread = Thread(target=answer)
        thread.start()
        with socket.create_connection(listener.getsockname()) as plain, pytest.raises(PinError, match="not in DER"):
            pinned_context(lambda _: None).wrap_socket(plain)
        thread.join()
    assert received in ([], [b""])


def test_one_way_to_write_a_length_is_read() -> None:
    _, certificate, _ = issued()
    [(_, outer)] = parts(certificate)
    longer = b"\x30\x84" + len(outer).to_bytes(4) + outer
    with pytest.raises(CertificateError, match="not in DER"):
        pin_of(longer)
    with pytest.raises(CertificateError, match="another form"):
        pin_of(b"\x31" + certificate[1:])
