"""Addresses are recognized, and written in one way."""

from __future__ import annotations

import pytest

from coordinatord.protocol.ip_addresses import Endpoint, is_loopback, parse_endpoint, plain_address


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


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("gpu-1.example_2.", "gpu-1.example_2.", 5),
        ("höst:8", "höst", 8),
        ("10.0.0.5:8", "10.0.0.5", 8),
        ("[fd00::1]:8", "fd00::1", 8),
        ("fd00::1", "fd00::1", 5),
        ("h" * 253, "h" * 253, 5),
    ],
)
def test_a_host_has_a_port_or_the_default_one(text: str, host: str, port: int) -> None:
    assert parse_endpoint(text, 5) == Endpoint(host, port)


@pytest.mark.parametrize(
    "text",
    ["", "h1;h2", "h*", "h'x", "$(x)", "user@h", "h\N{ZERO WIDTH SPACE}", "h" * 254, "h:0", "h:65536", "1::2::3"],
)
def test_a_text_that_can_be_no_host_is_no_endpoint(text: str) -> None:
    assert parse_endpoint(text, 5) is None
