"""What keeps a member of etcd from answering is said with what to do about it, and a watch goes on."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest
import trustme

from coordinatord.runtime.tasks import Tasks
from coordinatord.store.etcd import gateway as gateway_module
from coordinatord.store.etcd.gateway import PAUSE_S, TRY_WITHIN_S, Gateway
from coordinatord.store.etcd.location import EtcdAccess, EtcdLocation
from coordinatord.store.etcd.refusals import EtcdAwayError, why_no_answer
from tests.support.canned_http import body, canned
from tests.support.etcd import gateway_to
from tests.support.raw_session import until


@pytest.fixture
def authority() -> trustme.CA:
    """Return an authority that no host knows."""
    return trustme.CA()


@asynccontextmanager
async def member_with_tls(authority: trustme.CA) -> AsyncIterator[int]:
    """Yield the port of a server that agrees on TLS, and then hangs up."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def reason_of(url: str, authorities: Path | None = None) -> str:
    """Return what is said of a member that does not answer."""
    gateway = Gateway(EtcdLocation.parse(url, EtcdAccess(authorities=authorities)))
    try:
        with pytest.raises(EtcdAwayError) as caught:
            await gateway.call("/v3/kv/range", {})
    finally:
        await gateway.close()
    return str(caught.value)


async def test_an_unknown_authority_is_named(authority: trustme.CA) -> None:
    async with member_with_tls(authority) as port:
        reason = await reason_of(f"etcds://127.0.0.1:{port}")
    assert "its certificate is of no authority that is trusted here: see --etcd-ca (" in reason


async def test_a_certificate_for_another_name_is_named(authority: trustme.CA, tmp_path: Path) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with member_with_tls(authority) as port:
        reason = await reason_of(f"etcds://localhost:{port}", tmp_path / "ca.pem")
    assert "its certificate is for another name than --store has: " in reason
    assert "localhost" in reason.rpartition(" than --store has: ")[2]


@pytest.mark.parametrize("alert", ["SSLV3_ALERT_BAD_CERTIFICATE", "TLSV13_ALERT_CERTIFICATE_REQUIRED"])
async def test_a_wish_for_a_certificate_is_named(alert: str) -> None:
    # Not over a socket: the alert and the end of the connection come at once, and either may be seen first.
    error = aiohttp.ClientOSError(1, f"[SSL: {alert}] {alert.lower()} (_ssl.c:2580)")
    reason = "it wants a certificate of this client: see --etcd-cert and --etcd-key"
    assert why_no_answer(error, 2.0, tls=True) == reason


async def test_each_of_tls_and_its_absence_is_named_where_the_other_is_spoken(authority: trustme.CA) -> None:
    with canned(body(b"{}")) as (plain, _):
        reason = await reason_of(f"etcds://{plain}")
    assert reason.endswith("it does not speak TLS: is it etcd:// instead of etcds://?")
    async with member_with_tls(authority) as port:
        reason = await reason_of(f"etcd://127.0.0.1:{port}")
    assert reason.endswith("does it speak TLS, and is it etcds:// instead of etcd://?")


async def test_a_member_that_is_not_there_is_said_in_the_kernel_s_words() -> None:
    with socket.socket() as held:  # bound, and nobody listens
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        assert (await reason_of(f"etcds://{address}")).endswith(f"https://{address}: Connection refused")


async def test_an_answer_that_is_cut_off_is_said_in_words() -> None:
    """A member that is killed under a watch does that: the answer has no end."""

    def cut_off(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        handler.wfile.write(b"{")
        handler.close_connection = True

    with canned(cut_off) as (address, _):
        reason = await reason_of(f"etcd://{address}")
    assert reason.endswith(f"http://{address}: the connection broke in the middle of an answer")


async def test_a_cancellation_that_comes_with_a_timeout_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that is to end, or waits no longer for another leader, cancels so while etcd hangs."""
    monkeypatch.setattr(gateway_module, "TRY_WITHIN_S", TRY_WITHIN_S)
    loop, asked = asyncio.get_running_loop(), asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        gateway = Gateway(EtcdLocation.parse(f"etcd://127.0.0.1:{server.sockets[0].getsockname()[1]}", EtcdAccess()))
        request = asyncio.ensure_future(gateway.call("/v3/kv/range", {}))
        await asked.wait()
        loop.call_later(TRY_WITHIN_S, request.cancel)
        late_by_s, clock = 2 * TRY_WITHIN_S, loop.time
        monkeypatch.setattr(loop, "time", lambda: clock() + late_by_s)  # both are due when the loop looks again
        await asyncio.wait([request])
        await gateway.close()
    assert request.cancelled()


async def test_a_watch_whose_stream_ends_at_once_is_begun_anew_after_a_pause() -> None:
    begun: list[float] = []

    def end_at_once(handler: BaseHTTPRequestHandler) -> None:
        begun.append(time.monotonic())
        body(b"")(handler)

    answers = {"POST /v3/kv/range": body(b'{"header": {"revision": "5"}}'), "POST /v3/watch": end_at_once}
    with canned(answers) as (address, _):
        async with gateway_to(EtcdLocation.parse(f"etcd://{address}/any")) as gateway:
            tasks = Tasks()

            async def watch() -> None:
                async for _ in gateway.watch(b"key"):
                    pass

            tasks.spawn(watch(), name="watch")
            await until(lambda: len(begun) >= 3)
            await tasks.cancel()
    assert all(later - earlier > PAUSE_S / 2 for earlier, later in pairwise(begun))
