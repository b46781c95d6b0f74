"""Which of several coordinators a node tries after a session has ended."""

import asyncio
import os
import re
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.access_token import Role
from coordinatord.protocol.codec import encode
from coordinatord.protocol.messages import Join, RefusalCode, Refused
from coordinatord.runtime.tasks import Tasks
from coordinatord.security import gatekeeper
from coordinatord.server import driver
from coordinatord.server.app import ListenAddress, serve
from coordinatord.server.sessions import revocation
from coordinatord.server.standby import serve_standby
from coordinatord.store.database_store import MemoryStore
from nodeclient.access.keyring import INSECURE_ACCESS, AccessSettings
from nodeclient.config.flag_values import endpoints
from nodeclient.core.events import DesiredReceived, Event, SessionClosed, SessionOpened, TurnedAway
from nodeclient.shell import coordinator_connection
from nodeclient.shell.coordinator_connection import CoordinatorConnection, pause_after
from tests.support.builders import a_join, a_spec
from tests.support.canned_http import canned, stands_by
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import until
from tests.support.secured import secured, serving
from tests.support.strange_coordinator import WAIT, strange_coordinator


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try no other coordinator, and take no store for failed, because this machine is busy."""
    monkeypatch.setattr(driver, "WRITE_WITHIN_S", TIMEOUT_S)
    monkeypatch.setattr(coordinator_connection, "REACH_WITHIN_S", TIMEOUT_S)
    monkeypatch.setattr(coordinator_connection, "CONNECT_WITHIN_S", TIMEOUT_S)


def refusals(heard: Sequence[Event]) -> list[Refused]:
    return [event.refused for event in heard if isinstance(event, TurnedAway)]


def given(file: Path, text: str) -> AccessSettings:
    """Write tokens into a file; return the settings of a node that is given it."""
    file.write_text(text)
    return AccessSettings(token_file=file)


async def let_in(socket: web.WebSocketResponse) -> None:
    """Let a node in, and lose the connection."""
    await socket.send_bytes(encode(WAIT))


async def turn_away(socket: web.WebSocketResponse) -> None:
    """End the session without a message."""
    del socket


@asynccontextmanager
async def attending(
    addresses: Sequence[str], make_join: Callable[[], Join] = a_join, access: AccessSettings = INSECURE_ACCESS
) -> AsyncIterator[list[Event]]:
    """Hold sessions with whichever of these answers; yield the events."""
    heard: list[Event] = []
    session = CoordinatorConnection(endpoints(",".join(addresses)), access, make_join=make_join, submit=heard.append)
    tasks = Tasks()
    tasks.spawn(session.run(), name="session")
    try:
        yield heard
    finally:
        await tasks.cancel()


async def test_one_that_turned_the_node_away_is_followed_by_the_next_and_one_that_let_it_in_is_tried_first_again() -> (
    None
):
    async with (
        strange_coordinator(turn_away) as (first, joins_of_first),
        strange_coordinator(let_in) as (second, joins_of_second),
        attending([first, second]),
    ):
        await until(lambda: len(joins_of_second) == 3)
        assert len(joins_of_first) == 1


async def test_the_leader_that_a_standby_names_is_joined_at_once() -> None:
    async with strange_coordinator(let_in) as (leader, joins):
        with canned(stands_by(leader)) as (standby, asked):
            async with attending([standby]) as heard:
                await until(lambda: len(joins) == 2)
        assert len(asked) == 1, "the leader has served, so it is asked again"
        reasons = [event.reason for event in heard if isinstance(event, SessionClosed)]
        assert reasons[0] == f"{standby} stands by: {leader} leads"


def resolve(monkeypatch: pytest.MonkeyPatch, look_up: Callable[[], str]) -> None:
    """Have a look-up of coord.example return this."""
    really = socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, **named: Any) -> Any:
        return really(look_up() if host == "coord.example" else host, *args, **named)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def times_in(heard: Sequence[Event]) -> int:
    return sum(isinstance(event, DesiredReceived) for event in heard)


@pytest.mark.parametrize("is_answered", [True, False], ids=["unknown", "no answer"])
async def test_one_that_has_let_the_node_in_is_found_again_though_its_name_is_known_no_more(
    is_answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def look_up() -> str:
        if joins:
            ended.wait(0 if is_answered else None)
            raise socket.gaierror
        return "127.0.0.1"

    resolve(monkeypatch, look_up)
    async with strange_coordinator(let_in) as (address, joins):
        try:
            async with attending([address.replace("127.0.0.1", "coord.example")]):
                await until(lambda: len(joins) == 3)
        finally:
            ended.set()


async def test_one_that_has_moved_is_found_however_late_its_name_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_connection, "RESOLVE_WITHIN_S", 0.01)
    places, answers = ["127.0.0.1"], threading.Event()

    def look_up() -> str:
        answers.wait()
        return places[-1]

    answers.set()
    resolve(monkeypatch, look_up)
    async with AsyncExitStack() as ends_first, AsyncExitStack() as stack:
        first = await ends_first.enter_async_context(serve(ListenAddress("127.0.0.1", 0), Policy(), MemoryStore()))
        port = int(first.url.rpartition(":")[2])
        heard = await stack.enter_async_context(attending([f"coord.example:{port}"]))
        await until(lambda: times_in(heard) > 0)
        answers.clear()
        await ends_first.aclose()
        refused = SessionClosed(f"coord.example:{port}: Connection refused")
        await until(lambda: heard.count(refused) > 1)
        places.append("127.0.0.2")
        await stack.enter_async_context(serve(ListenAddress(places[-1], port), Policy(), MemoryStore()))
        before = times_in(heard)
        answers.set()
        await until(lambda: times_in(heard) > before)


async def test_another_one_where_it_was_last_makes_no_token_wrong_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_connection, "WRONG_FOR_S", 0.001)
    ours, other = secured(tmp_path / "ours"), secured(tmp_path / "other")
    access = given(tmp_path / "token", ours.token().text)
    heard: Sequence[Event] = []

    def look_up() -> str:
        if times_in(heard):
            raise socket.gaierror
        return "127.0.0.1"

    resolve(monkeypatch, look_up)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"coord.example:{listener.getsockname()[1]}"
        async with AsyncExitStack() as ends_first, AsyncExitStack() as stack:
            await ends_first.enter_async_context(serving(ours, listener=listener.dup()))
            heard = await stack.enter_async_context(attending([address], access=access))
            await until(lambda: times_in(heard) > 0)
            await ends_first.aclose()
            await stack.enter_async_context(serving(other, listener=listener.dup()))
            unknown = SessionClosed("the host name coord.example cannot be resolved")
            await until(lambda: heard.count(unknown) > 1)
    [refused] = refusals(heard)
    assert "its key matches no token" in refused.message
    assert refused.retry


async def test_one_that_falls_silent_is_followed_by_the_next() -> None:
    silent = asyncio.Event()

    async def fall_silent(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(encode(WAIT))
        await silent.wait()

    heard: list[Event] = []
    async with strange_coordinator(fall_silent) as (first, _), strange_coordinator(let_in) as (second, joins):
        both = endpoints(f"{first},{second}")
        session = CoordinatorConnection(both, INSECURE_ACCESS, make_join=a_join, submit=heard.append)
        tasks = Tasks()
        tasks.spawn(session.run(), name="session")
        try:
            await until(lambda: any(isinstance(event, DesiredReceived) for event in heard))
            session.close("no answer for 5 s")
            await until(lambda: len(joins) == 1)
        finally:
            silent.set()
            await tasks.cancel()


async def test_one_that_accepts_a_connection_and_never_answers_is_followed_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator_connection, "CONNECT_WITHIN_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = f"127.0.0.1:{listener.getsockname()[1]}"
        async with strange_coordinator(let_in) as (second, joins), attending([silent, second]):
            await until(lambda: len(joins) == 1)


def has_peer(sock: socket.socket) -> bool:
    """Whether a socket is connected; it is not any more once the peer has reset the connection."""
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


async def test_one_that_is_gone_before_a_session_begins_is_followed_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, errors = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    connect = loop.sock_connect
    with socket.create_server(("127.0.0.1", 0)) as listener:

        async def connect_and_reset(sock: socket.socket, address: Any) -> None:
            await connect(sock, address)
            if address != listener.getsockname():
                return
            accepted, _ = listener.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            await until(lambda: not has_peer(sock))

        monkeypatch.setattr(loop, "sock_connect", connect_and_reset)
        gone = f"127.0.0.1:{listener.getsockname()[1]}"
        async with strange_coordinator(let_in) as (second, joins), attending([gone, second]) as heard:
            await until(lambda: len(joins) == 1)
    assert errors == []
    assert isinstance(heard[0], SessionClosed)


async def test_a_node_says_why_nobody_leads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        async with (
            serve_standby([listener.dup()], lambda: None, None, None, why=lambda: "etcd is away"),
            attending([address]) as heard,
        ):
            await until(lambda: bool(heard))
    assert heard[0] == SessionClosed(f"{address} stands by, and nobody leads: etcd is away")


@asynccontextmanager
async def proxied(url: str, old: bytes, new: bytes) -> AsyncIterator[str]:
    """Forward requests to a server as a proxy that puts `new` in place of `old`; yield the proxy's address."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    forwarding: list[asyncio.Task[None] | None] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forwarding.append(asyncio.current_task())
        answers, requests = await asyncio.open_connection(host, int(port))
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # the node has gone
            requests.write((await reader.readuntil(b"\r\n\r\n")).replace(old, new))
            writer.write(await answers.read())
        requests.close()
        writer.close()

    async with await asyncio.start_server(forward, "127.0.0.1", 0) as proxy:
        yield f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    for task in filter(None, forwarding):
        await task


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"HTTP/1.1", b"HTTP/1.0", "HTTP/1.0 has no WebSockets: does a proxy use it?"),
        (b"Upgrade: websocket\r\n", b"", "the request has no `Upgrade: websocket`: does a proxy take it out?"),
        (b"Connection: Upgrade", b"Connection: close", "has no `Connection: upgrade`: does a proxy take it out?"),
    ],
)
async def test_a_proxy_that_is_not_set_up_for_websockets_is_named(old: bytes, new: bytes, words: str) -> None:
    async with (
        serve(ListenAddress("127.0.0.1", 0), Policy(), MemoryStore()) as server,
        proxied(server.url, old, new) as proxy,
        attending([proxy]) as heard,
    ):
        await until(lambda: bool(heard))
        [reason, *_] = [event.reason for event in heard if isinstance(event, SessionClosed)]
        assert reason.startswith(f"{proxy}: ")
        assert words in reason


@pytest.mark.parametrize(("turned_away", "most_s"), [(False, 1.0), (True, 10.0)])
async def test_pauses_grow_up_to_a_bound_and_further_where_there_is_no_place(turned_away: bool, most_s: float) -> None:
    pauses = [0.1]
    for _ in range(10):
        pauses.append(pause_after(pauses[-1], let_in=False, turned_away=turned_away))
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert pauses[-1] == most_s
    assert pause_after(most_s, let_in=True, turned_away=False) == 0.1
    assert pause_after(10.0, let_in=False, turned_away=False) == 1.0


async def test_a_node_shows_the_token_that_it_came_with_until_that_is_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Tokens are replaced in three steps, and between any two of them a connection may break."""
    monkeypatch.setattr(revocation, "POLL_EVERY_S", 0.01)
    ours, file = secured(tmp_path), tmp_path / "token"
    access = given(file, ours.token().text)
    async with serving(ours) as server:
        machine = server.driver.machine

        def came_with(token: str) -> bool:
            return machine.sessions == 1 and machine.jobs["job"].members["a"].session.token == token

        async with attending([server.url], lambda: a_join("a", job="job", spec=a_spec(2, 2)), access) as heard:

            def times_in() -> int:
                return sum(isinstance(event, SessionOpened) for event in heard)

            await until(lambda: any(isinstance(event, DesiredReceived) for event in heard))
            file.write_text(ours.add("newer", Role.JOIN).text)
            server.sessions.close()
            await until(lambda: times_in() == 2)
            await until(lambda: came_with("first-join"))
            ours.store.revoke("first-join")
            await until(lambda: came_with("newer"))
            await until(lambda: isinstance(heard[-1], DesiredReceived))
            assert not any(isinstance(event, TurnedAway) for event in heard)
            assert SessionClosed("the token first-join was revoked") in heard
            assert "not let in" not in caplog.text, "the revoked token is not tried again"
            file.unlink()  # it may be one that can be read once, such as a pipe
            before = times_in()
            server.sessions.close()
            await until(lambda: times_in() > before)
            await until(lambda: isinstance(heard[-1], DesiredReceived))
            [session] = server.sessions._joined.values()
            before = times_in()
            server.sessions.refuse_flood(session)  # a refusal that is not about its token
            await until(lambda: times_in() > before)


async def test_a_token_on_a_file_system_that_hangs_holds_up_one_thread_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_connection, "READ_WITHIN_S", 0.01)
    hangs = tmp_path / "token"
    os.mkfifo(hangs)  # whoever opens it waits for somebody who writes
    async with attending(["127.0.0.1:1"], access=AccessSettings(token_file=hangs)) as heard:
        await until(lambda: len(refusals(heard)) == 3)
        assert {refused.retry for refused in refusals(heard)} == {True}
        assert "hangs" in refusals(heard)[0].message
        assert [thread.name for thread in threading.enumerate()].count("access") == 1
    os.close(os.open(hangs, os.O_WRONLY))


async def test_a_coordinator_with_another_key_gets_the_token_that_is_for_it(tmp_path: Path) -> None:
    both = [secured(tmp_path / name) for name in ("first", "second")]
    access = given(tmp_path / "token", "\n".join(ours.token().text for ours in both))
    async with AsyncExitStack() as ends_first, AsyncExitStack() as stack:
        contexts = [serving(ours) for ours in both]
        servers = [await ends_first.enter_async_context(contexts[0]), await stack.enter_async_context(contexts[1])]
        addresses = [server.url.removeprefix("https://") for server in servers]
        heard = await stack.enter_async_context(attending(addresses, access=access))
        await until(lambda: any(isinstance(event, DesiredReceived) for event in heard))
        await ends_first.aclose()
        await until(lambda: SessionOpened(addresses[1]) in heard)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "token cannot be read: No such file or directory"),
        ("no token", "this is no access token"),
        ("revoked", r"the token first-join was revoked: .* \(this node's token is from /.*/token\)$"),
        ("foreign", "its key matches no token in .*token"),
    ],
)
async def test_a_token_that_is_wrong_for_some_time_is_wrong_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, words: str
) -> None:
    monkeypatch.setattr(coordinator_connection, "WRONG_FOR_S", 0.3)
    ours, file = secured(tmp_path / "ours"), tmp_path / "token"
    texts = {"revoked": ours.token().text, "foreign": secured(tmp_path / "other").token().text}
    ours.store.revoke("first-join")
    ours = secured(tmp_path / "ours")
    if text is not None:
        file.write_text(texts.get(text, text))
    access = AccessSettings(token_file=file)
    async with serving(ours) as server, attending([server.url], access=access) as heard:
        await until(lambda: any(refused.retry is False for refused in refusals(heard)))
    assert refusals(heard)[0].retry, "a coordinator may not know of a new token yet"
    assert {refused.code for refused in refusals(heard)} == {RefusalCode.FORBIDDEN}
    assert re.search(words, refusals(heard)[0].message)


async def test_a_node_that_is_turned_away_too_often_still_says_why_and_tries_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_connection, "WRONG_FOR_S", 0.001)
    monkeypatch.setattr(gatekeeper, "FAILURES_MAX", 0)
    ours = secured(tmp_path / "ours")
    access = given(tmp_path / "token", ours.token().text)
    ours.store.revoke("first-join")
    async with serving(secured(tmp_path / "ours")) as server, attending([server.url], access=access) as heard:
        await until(lambda: len(refusals(heard)) > 1)
    assert {refused.retry for refused in refusals(heard)} == {True}
    words = r"the token first-join was revoked: .*; too many requests .* \(this node's token is from /.*/token\)$"
    assert re.search(words, refusals(heard)[0].message)


async def test_a_token_is_not_wrong_for_good_while_another_coordinator_may_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_connection, "WRONG_FOR_S", 0.001)
    access = given(tmp_path / "token", secured(tmp_path / "other").token().text)
    async with (
        serving(secured(tmp_path / "ours")) as server,
        attending([server.url, "127.0.0.1:1"], access=access) as heard,
    ):
        await until(lambda: len(refusals(heard)) >= 3)
    assert all(refused.retry for refused in refusals(heard))


async def test_that_nobody_has_proven_who_answers_is_said_at_each_session(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A node may have brought a coordinator along, which has no way to hand out tokens."""
    secured(tmp_path)
    access = AccessSettings(config_home=str(tmp_path / "config"), plaintext_allowed=True)
    async with strange_coordinator(let_in) as (address, joins), attending([address], access=access):
        await until(lambda: len(joins) == 3)
    said = [record for record in caplog.records if record.__dict__.get("event") == "unproven_coordinator"]
    assert len(said) in {2, 3}
    assert f"{address} serves in the clear, so this node cannot verify which coordinator answers" in said[0].message


async def test_a_node_that_was_given_a_token_joins_nobody_in_the_clear(tmp_path: Path) -> None:
    token, file = secured(tmp_path).token().text, tmp_path / "token"
    file.write_text(token)
    for access in (
        AccessSettings(token_file=file, plaintext_allowed=True),
        AccessSettings(token=token, plaintext_allowed=True),
        AccessSettings(config_home=str(tmp_path / "config")),
    ):
        async with strange_coordinator(let_in) as (address, joins), attending([address], access=access) as heard:
            await until(lambda: len(heard) >= 2)
            assert joins == []
            [reason, *_] = [event.reason for event in heard if isinstance(event, SessionClosed)]
            assert "uses no TLS, and there is a token here" in reason


async def test_a_node_tries_on_while_the_system_has_no_thread_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    resolve(monkeypatch, lambda: "127.0.0.1")
    async with strange_coordinator(let_in) as (address, joins):
        with monkeypatch.context() as system:
            system.setattr(threading.Thread, "start", refuse)
            async with attending([address.replace("127.0.0.1", "coord.example")]) as heard:
                await until(lambda: len(heard) > 2)
                system.undo()
                await until(lambda: bool(joins))
