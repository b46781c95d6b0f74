"""A node's address is probed from the other end: over real connections, to whatever answers there."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

from nodeclient.shell.master_probe import ProbeListener, find_obstacle
from tests.support.builders import an_assignment

LONG_S = 100.0
BRIEF_S = 2.0
"""Where nobody answers, the test waits for all of it. On a busy machine a first try is over by then."""

SENDS = {"another node": b"nodeclient b\n", "something else": b"SSH-2.0-OpenSSH_9.2\r\n", "too much": b"x" * 100_000}


def part(port: int, address: str = "127.0.0.1") -> Any:
    return an_assignment(master_node="a", master_address=address, master_probe_port=port)


@asynccontextmanager
async def listening(make: Callable[[], ProbeListener]) -> AsyncIterator[ProbeListener]:
    with closing(make()) as listener:
        yield listener


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
async def test_a_node_that_answers_is_reached_at_each_of_its_addresses(address: str) -> None:
    async with listening(lambda: ProbeListener("a")) as listener:
        assert await find_obstacle(part(listener.port, address), LONG_S) is None


async def test_a_thousand_at_once_are_answered() -> None:
    async with listening(lambda: ProbeListener("a")) as listener:
        asked = [find_obstacle(part(listener.port), LONG_S) for _ in range(1_000)]
        assert set(await asyncio.gather(*asked)) == {None}


async def test_who_connects_and_says_or_takes_nothing_is_in_nobodys_way() -> None:
    async with listening(lambda: ProbeListener("a")) as listener:
        with socket.create_connection(("127.0.0.1", listener.port)), socket.socket() as rude:
            rude.connect(("127.0.0.1", listener.port))
            rude.send(b"GET / HTTP/1.1\r\n\r\n" * 1_000)
            assert await find_obstacle(part(listener.port), LONG_S) is None


@pytest.mark.parametrize("says", list(SENDS))
async def test_an_address_at_which_somebody_else_answers_is_named(says: str) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SENDS[says])
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        obstacle = await find_obstacle(part(server.sockets[0].getsockname()[1]), LONG_S)
    assert obstacle is not None
    said = "127.0.0.1, offered by node a as its address, cannot be reached (another program answers there: "
    assert obstacle.startswith(said)
    assert obstacle.endswith("): see --advertise-addr of node a")
    assert len(obstacle) < 200


async def test_where_nobody_listens_the_reason_is_the_systems() -> None:
    with socket.socket() as held:  # so that the kernel gives its port to nobody else
        held.bind(("127.0.0.1", 0))
        obstacle = await find_obstacle(part(held.getsockname()[1]), BRIEF_S)
    assert obstacle == (
        "127.0.0.1, offered by node a as its address, cannot be reached (connection refused, tried for 2 s):"
        " see --advertise-addr of node a"
    )


async def test_one_that_accepts_and_is_silent_is_no_node() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        obstacle = await find_obstacle(part(server.getsockname()[1]), 0.1)
    assert obstacle is not None
    assert "(no answer, tried for 0.1 s)" in obstacle


async def test_a_proxy_whose_other_side_is_not_up_yet_is_asked_again() -> None:
    answers = [b"", b"nodeclient a\n"]

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.pop(0))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        assert await find_obstacle(part(server.sockets[0].getsockname()[1]), LONG_S) is None


async def test_a_name_that_leads_nowhere_is_an_obstacle() -> None:
    names = {"no-such-host.invalid": "", "a..b": "it is no host name, ", "x" * 64: "it is no host name, "}
    obstacles = await asyncio.gather(*(find_obstacle(part(1, name), BRIEF_S) for name in names))
    for (name, why), obstacle in zip(names.items(), obstacles, strict=True):
        assert obstacle is not None
        assert obstacle.startswith(f"{name}, offered by node a as its address, cannot be reached ({why}")
        assert "unknown error" not in obstacle


async def test_a_listener_comes_up_a_moment_later() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        asked = asyncio.ensure_future(find_obstacle(part(reserved.getsockname()[1]), LONG_S))
        await asyncio.sleep(0)
        reserved.listen()
        connection, _ = await asyncio.get_running_loop().run_in_executor(None, reserved.accept)
        with connection:
            connection.send(b"nodeclient a\n")
        assert await asked is None
