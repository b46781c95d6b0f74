"""Clients that have to show a certificate: which nodes it is for, and what is said of one that does not count."""

import logging
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from coordinatord.protocol.messages import Goal, RefusalCode
from coordinatord.runtime.pinned_tls import pinned_context
from coordinatord.server.app import Server
from tests.support.raw_session import join, until
from tests.support.raw_websocket import wire
from tests.support.secured import TRUSTING, Secured, goal_of, refusal_of, secured, serving, session


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def mutual(tmp_path: Path, authority: trustme.CA) -> Secured:
    """Have clients show a certificate of this authority, which is in `ca.pem`."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("coord.example")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    certificate, key, authorities = (tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem"))
    return secured(tmp_path, certificate=certificate, key=key, client_authorities=authorities)


def showing(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    """Return the context of a client that shows a certificate with these names."""
    context = pinned_context(lambda _: None)
    authority.issue_cert(*names).configure_cert(context)
    return context


async def test_the_name_in_a_client_s_certificate_bounds_its_node_ids(mutual: Secured, authority: trustme.CA) -> None:
    shown = showing(authority, "gpu7", "10.0.0.7")
    async with serving(mutual) as server:
        for node in ("gpu7", "gpu7-2", "10.0.0.7"):
            assert await goal_of(server, mutual.token(), join(node, job=node), shown) is Goal.RUN
        refused = await refusal_of(server, mutual.token(), join("gpu8"), shown)
        assert (refused.code, refused.retry) == (RefusalCode.FORBIDDEN, False)
        assert "the client's certificate is for 10.0.0.7, gpu7, so it cannot be the node gpu8" in refused.message


async def test_a_client_without_a_certificate_that_counts_is_logged_and_counted(
    mutual: Secured, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    def denied() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.__dict__.get("event") == "access_denied"]

    async with serving(mutual) as server:
        for shown in (TRUSTING, showing(trustme.CA(), "gpu7")):
            with suppress(ssl.SSLError, ConnectionError):
                async with wire(server.url, session(mutual.token(), join("gpu7")), tls=shown) as peer:
                    await peer.upgraded()
        shown = showing(authority, "gpu7")
        assert await goal_of(server, mutual.token(), join("gpu7"), shown) is Goal.RUN
        await until(lambda: len(denied()) == 2)
        assert mutual.security.gatekeeper.denied == 2
    assert denied()[0] == "not let in: the client has shown no certificate, and --tls-client-ca wants one"
    assert denied()[1].startswith("not let in: the certificate of the client is not to be trusted: ")


async def test_other_authorities_of_clients_count_after_a_reload(
    mutual: Secured, authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = trustme.CA()
    old, new = showing(authority, "gpu7"), showing(other, "gpu7")
    caplog.set_level(logging.INFO)

    async def comes_in(server: Server, shown: ssl.SSLContext) -> bool:
        try:
            return await goal_of(server, mutual.token(), join("gpu7"), shown) is Goal.RUN
        except (ssl.SSLError, ConnectionError):
            return False

    async with serving(mutual) as server:
        assert [await comes_in(server, shown) for shown in (old, new)] == [True, False]
        mutual.security.reload()
        assert "client_authorities_changed" not in [record.__dict__.get("event") for record in caplog.records]
        (tmp_path / "ca.pem").write_text("no certificate")
        mutual.security.reload()
        assert [await comes_in(server, shown) for shown in (old, new)] == [True, False]
        other.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        mutual.security.reload()
        assert [await comes_in(server, shown) for shown in (old, new)] == [False, True]
    said = [record.__dict__.get("event") for record in caplog.records]
    assert [event for event in said if str(event).startswith(("client_", "tls_"))] == [
        "tls_reload_failed",
        "client_authorities_changed",
    ]
