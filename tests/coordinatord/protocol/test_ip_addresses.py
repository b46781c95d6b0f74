"""Addresses are recognized, and written in one way."""

from __future__ import annotations

import pytest

from coordinatord.protocol.ip_addresses import is_loopback, plain_address


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("10.0.0.1", False), ("localhost", False), ("", False)],
)
def test_loopback_is_known_by_address_and_never_by_name(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


@pytest.mark.parametrize(
    ("seen", "written"),
    [
        ("10.0.0.5", "10.0.0.5"),
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("fe80::1%eth0", "fe80::1"),
        ("2001:DB8::1", "2001:db8::1"),
        ("unknown", "unknown"),
    ],
)
def test_an_address_is_written_plainly(seen: str, written: str) -> None:
    assert plain_address(seen) == written
