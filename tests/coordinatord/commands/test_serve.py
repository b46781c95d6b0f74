"""A start costs no more than it has to."""

import os
import subprocess
import sys

import pytest

from coordinatord.commands.serve import without_system_authorities

LOOK = """
import os
from coordinatord.commands.serve import without_system_authorities
with without_system_authorities():
    from aiohttp import connector
contexts = connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED
print([context.cert_store_stats()["x509"] for context in contexts])
"""


@pytest.mark.slow
def test_no_authority_is_read_for_a_client_that_nobody_uses() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0, 0]", "has aiohttp another way now?"


@pytest.mark.parametrize("before", [None, "/etc/ssl/own.pem"])
def test_the_user_s_authorities_are_named_as_before(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if before is not None:
        monkeypatch.setenv("SSL_CERT_FILE", before)
    with without_system_authorities():
        assert os.environ["SSL_CERT_FILE"] == os.devnull
    assert os.environ.get("SSL_CERT_FILE") == before
