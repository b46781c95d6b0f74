"""Parts go from one agent to another, whole and unchanged or not at all, whoever is at the other end."""

import asyncio
import dataclasses
import errno
import select
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.protocol.kept_state import KeptSource, KeptStep, Restoring, WantedParts
from nodeclient.core.effects import Protect, Restore
from nodeclient.core.events import KeptChanged
from nodeclient.keeping.parts import part_fetch
from nodeclient.keeping.parts.part_messages import (
    NONCE_BYTES,
    REQUEST_BYTES,
    TAG_BYTES,
    Exchange,
    Kind,
    PartName,
)
from tests.nodeclient.keeping.stage import (
    BIG,
    RUN,
    SMALL,
    UNUSED_PORT,
    KeepingNode,
    a_resume,
    holder,
    keeping_nodes,
    wanted,
)
from tests.support.programs import TIMEOUT_S
from workerlib.contract.arena import PENDING, WITH_SMALL, Commit, Place
from workerlib.contract.channel_messages import DESCRIPTORS_MAX


async def failed(node: KeepingNode) -> str:
    """Wait until a node says that it cannot resume; return why."""
    await node.until(lambda: KeptChanged() in node.events)
    holding = node.reported(workers=True)
    assert holding.restoring is Restoring.FAILED
    assert holding.used_bytes == 0, "memory for what never came is given back"
    return holding.problem


async def test_a_node_without_any_memory_of_it_gets_all_from_another(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b", workers=2) as [a, b]:
        await holder(a)
        path = b.begin(2, a_resume(1, 7, a.source(wanted())))
        resume, data = await b.worker(path).resume()
        assert await b.worker(path, 1).resume() == (resume, data), "all workers of a node get the same"
        assert data == {(0, True): BIG, (0, False): SMALL}
        assert {(part.rank, part.big, part.small) for part in resume.parts} == {(0, True, False), (0, False, True)}
        assert "2 of 2 parts, 3.08 MB, came from other nodes" in b.texts[-1]
        holding = b.reported(workers=True)
        assert (holding.restoring, holding.used_bytes) == (Restoring.READY, 0)


async def test_own_parts_and_those_of_others_are_put_together(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b") as [a, b]:
        await holder(a)
        own = b.worker(b.begin(1), rank=1, world_size=2)
        await own.reserve()
        own.save(7, big=None, small=b"mine", flags=PENDING)
        own.die()
        resume = a_resume(1, 7, a.source(wanted(small=False)), b.source(wanted(1, big=False)))
        answer, data = await b.worker(b.begin(2, resume)).resume()
        assert data == {(0, True): BIG, (1, False): b"mine"}
        assert {(part.rank, part.big, part.small, part.pending) for part in answer.parts} == {
            (0, True, False, False),
            (1, False, True, True),
        }


async def test_a_generation_with_the_small_state_is_sent_once(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b") as [a, b]:
        await holder(a, small=None, flags=WITH_SMALL)
        answer, data = await b.worker(b.begin(2, a_resume(1, 7, a.source(wanted())))).resume()
        assert data == {(0, True): BIG}
        assert [(part.big, part.small) for part in answer.parts] == [(True, True)]
        answer, data = await b.worker(b.begin(3, a_resume(1, 7, a.source(wanted(big=False))))).resume()
        assert data == {(0, True): BIG}


async def test_more_parts_than_a_packet_takes_come_in_several(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", workers=DESCRIPTORS_MAX + 6) as [a]:
        path = a.begin(1)
        for rank in range(a.workers):
            worker = a.worker(path, rank, rank, a.workers)
            await worker.reserve(0, 64)
            worker.save(7, big=None, small=str(rank).encode())
        resume = a_resume(1, 7, a.source(WantedParts(0, a.workers, big=False, small=True)))
        _, data = await a.worker(a.begin(2, resume)).resume()
        assert data == {(rank, False): str(rank).encode() for rank in range(a.workers)}
        holding = a.reported()
        assert [(group.first_rank, group.ranks) for group in holding.parts] == [(0, a.workers)]


# What came stays


async def received(nodes: list[KeepingNode], *protected: int) -> KeepingNode:
    """Have the second node get step 7 from the first one, which then ends; return the second one."""
    a, b = nodes
    b.keeper.carry_out(Protect(RUN, tuple(KeptStep(1, step) for step in protected)))
    await holder(a)
    await b.worker(b.begin(2, a_resume(1, 7, a.source(wanted())))).resume()
    a.keeper.close()
    await asyncio.sleep(0)  # its port is closed, and so is what waits there
    return b


async def test_a_node_holds_what_came_while_it_is_protected_and_gives_it_to_others(tmp_path: Path) -> None:
    """The node that had it leaves, and a planned end may come before the workers have done a step."""
    async with keeping_nodes(tmp_path, "a", "b", "c") as [*nodes, c]:
        b = await received(nodes, 7)
        [part] = b.reported(workers=True).parts
        assert (part.step, part.big, part.small, part.protected) == (7, True, True, True)
        _, data = await c.worker(c.begin(2, a_resume(1, 7, b.source(wanted())))).resume()
        assert data == {(0, True): BIG, (0, False): SMALL}
        _, data = await b.worker(b.begin(3, a_resume(1, 7, b.source(wanted())))).resume()
        assert data == {(0, True): BIG, (0, False): SMALL}
        b.keeper.carry_out(Protect(RUN, (KeptStep(3, 8),)))
        assert b.reported(workers=True).used_bytes == 0


async def test_what_came_makes_room_for_what_the_workers_keep_themselves(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b", memory=int(3.5 * len(BIG))) as nodes:
        b = await received(nodes, 7)
        worker = b.worker(b.begin(3))
        await worker.reserve()
        assert worker.arena is not None
        assert b.reported(workers=True).parts == ()


# Another holder


async def test_when_a_holder_is_lost_its_parts_are_had_from_another(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "b", "c", patience_s=TIMEOUT_S) as [b, c]:
        await holder(b)
        gone = replace(b.source(wanted()), node="a", port=UNUSED_PORT)
        worker = c.worker(c.begin(2, a_resume(1, 7, gone)))
        holding = await c.reports(lambda holding: "from node a" in holding.problem, workers=True)
        assert holding.restoring is Restoring.FETCHING, "the coordinator will know another"
        c.keeper.carry_out(Restore(RUN, 2, a_resume(1, 7, b.source(wanted()))))
        assert (await worker.resume())[1] == {(0, True): BIG, (0, False): SMALL}


async def test_a_part_that_came_at_last_is_no_problem_though_another_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_fetch, "REQUEST_WITHIN_S", TIMEOUT_S)
    async with keeping_nodes(tmp_path, "a", "b", patience_s=TIMEOUT_S) as [a, b]:
        worker = a.worker(a.begin(1))
        await worker.reserve()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            other = replace(a.source(wanted(1)), node="c", port=silent.getsockname()[1])
            b.begin(2, a_resume(1, 7, a.source(wanted()), other))
            await b.reports(lambda holding: "rank 0 at step 7 could not be received" in holding.problem)
            worker.save(7)
            await b.reports(lambda holding: holding.restoring is Restoring.FETCHING and not holding.problem)


async def test_what_has_come_before_its_holder_was_lost_is_not_fetched_again(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b", patience_s=TIMEOUT_S) as [a, b]:
        await holder(a)
        b.keeper.carry_out(Protect(RUN, (KeptStep(1, 7),)))
        there, gone = a.source(wanted()), replace(a.source(wanted(1)), port=UNUSED_PORT)
        worker = b.worker(b.begin(2, a_resume(1, 7, there, gone)))
        await b.until(lambda: any(part.big and part.small for part in b.reported(workers=True).parts))
        b.keeper.carry_out(Restore(RUN, 2, a_resume(1, 7, replace(there, port=UNUSED_PORT))))
        assert (await worker.resume())[1] == {(0, True): BIG, (0, False): SMALL}


async def test_what_is_damaged_on_its_own_host_is_had_from_another(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b", patience_s=TIMEOUT_S) as [a, b]:
        worker = await holder(a)
        await holder(b)
        await a.damage(worker, 7)
        path = a.begin(2, a_resume(1, 7, a.source(wanted())))
        await a.until(lambda: KeptChanged() in a.events)
        holding = a.reported(workers=True)
        assert holding.restoring is Restoring.FETCHING
        assert not any(part.big for part in holding.parts), "it is withdrawn, so that the coordinator names another"
        own, others = a.source(wanted(big=False)), b.source(wanted(small=False))
        a.keeper.carry_out(Restore(RUN, 2, a_resume(1, 7, own, others)))
        assert (await a.worker(path).resume())[1] == {(0, True): BIG, (0, False): SMALL}


# Damage, lies and silence


async def test_a_bit_that_flips_in_memory_is_found_before_it_is_used_elsewhere(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b") as [a, b]:
        worker = await holder(a)
        await a.damage(worker, 7)
        b.begin(2, a_resume(1, 7, a.source(wanted())))
        assert "rank 0 at step 7 could not be received from node a" in await failed(b)
        await a.until(lambda: KeptChanged() in a.events)
        holding = a.reported()
        assert not any(part.big for part in holding.parts), "its holder withdraws it"
        assert "the memory of this host may be bad" in a.texts[-1]


@pytest.mark.parametrize(
    ("step", "changes", "why"),
    [
        (8, {}, "127.0.0.1 does not hold it any more"),
        (7, {"key": "0" * 32}, "was too slow, or broke off"),
        (7, {"port": UNUSED_PORT}, "onnection refused"),
    ],
    ids=["it is not there", "another key", "nobody listens"],
)
async def test_why_a_part_cannot_be_had_is_said_at_once(
    tmp_path: Path, step: int, changes: dict[str, Any], why: str
) -> None:
    async with keeping_nodes(tmp_path, "a", "b") as [a, b]:
        await holder(a)
        b.begin(2, a_resume(1, step, replace(a.source(wanted()), **changes)))
        problem = await failed(b)
        assert problem.startswith(f"the state of rank 0 at step {step} could not be received from node a: ")
        assert why in problem


async def test_nothing_of_another_run_is_given(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b") as [a, b]:
        await holder(a)
        b.begin(1, a_resume(1, 7, a.source(wanted())), run="r-2")
        await b.until(lambda: KeptChanged() in b.events)
        assert "does not hold it any more" in b.texts[-1]


async def test_memory_for_what_others_hold_is_bounded_too(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a") as [a]:
        await holder(a)
        async with keeping_nodes(tmp_path, "b", memory=1_000_000) as [b]:
            b.begin(2, a_resume(1, 7, a.source(wanted())))
            assert "takes 3.08 MB, and --keep-memory is 1 MB" in await failed(b)


Peer = Callable[[socket.socket], None]


@asynccontextmanager
async def answering(peer: Peer) -> AsyncIterator[int]:
    """Have something else than a holder answer at a port, one connection at a time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        open_ones: list[socket.socket] = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    open_ones.append(connection)
                    with connection, suppress(OSError):
                        peer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            for end in (listener, *open_ones):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            await asyncio.to_thread(thread.join)


@asynccontextmanager
async def between(target: KeptSource, change: Callable[[bytearray, int], bool]) -> AsyncIterator[KeptSource]:
    """Stand between reader and holder, and change what the holder sends.

    `change` gets it, and how much came before; where it returns False, nothing more comes.
    """

    def relay(reader: socket.socket) -> None:
        with socket.create_connection((target.address, target.port)) as there:
            count = 0
            while data := bytearray(there.recv(65_536)):
                if not change(data, count):
                    reader.recv(1)
                    return
                reader.sendall(data)
                if not count:  # that was the nonce
                    there.sendall(reader.recv(REQUEST_BYTES, socket.MSG_WAITALL))
                count += len(data)

    async with answering(relay) as port:
        yield replace(target, port=port)


@pytest.mark.parametrize("place", [0, NONCE_BYTES, NONCE_BYTES + 20, 200_000, -1])
async def test_a_bit_that_flips_on_the_wire_is_found(tmp_path: Path, place: int) -> None:
    async with keeping_nodes(tmp_path, "a", "b") as [a, b]:
        await holder(a)

        def flip(data: bytearray, before: int) -> bool:
            at = (len(BIG) + 100 if place < 0 else place) - before
            if 0 <= at < len(data):
                data[at] ^= 8
            return True

        async with between(a.source(wanted(small=False)), flip) as source:
            b.begin(2, a_resume(1, 7, source))
            problem = await failed(b)
        assert "a tag is wrong" in problem or "broke off" in problem


async def test_what_was_recorded_is_worth_nothing_later(tmp_path: Path) -> None:
    recorded = bytearray()

    def record(data: bytearray, _: int) -> bool:
        recorded.extend(data)
        return True

    def replay(reader: socket.socket) -> None:
        reader.sendall(recorded)
        reader.recv(1_000)
        reader.recv(1_000)

    async with keeping_nodes(tmp_path, "a", "b") as [a, b]:
        await holder(a)
        async with between(a.source(wanted(small=False)), record) as source:
            await b.worker(b.begin(2, a_resume(1, 7, source))).resume()
        assert len(recorded) > len(BIG)
        async with answering(replay) as port:
            b.begin(3, a_resume(1, 7, replace(a.source(wanted(small=False)), port=port)))
            assert "a tag is wrong" in await failed(b)


def silent(reader: socket.socket) -> None:
    reader.sendall(b"n" * NONCE_BYTES)
    while reader.recv(1_000):
        pass


def talkative(reader: socket.socket) -> None:
    reader.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 100_000)
    reader.recv(1_000)


def trickling(reader: socket.socket) -> None:
    reader.sendall(b"n" * NONCE_BYTES)
    reader.recv(REQUEST_BYTES, socket.MSG_WAITALL)
    with suppress(OSError):
        while not select.select([reader], [], [], 0.1)[0]:  # until the other end closes
            reader.sendall(b"a")


def gone(_: socket.socket) -> None:
    return


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"world_size": 0}, "rank 0 of 0, and shard 0 of 1"),
        ({"shards": 0}, "rank 0 of 1, and shard 0 of 0"),
        ({"shard": 2**63, "shards": 2**62}, f"shard {2**63} of {2**62}"),
        ({"length": 2**63}, f"cannot have {2**63} bytes"),
    ],
)
async def test_a_holder_that_lies_about_a_part_is_not_believed(
    tmp_path: Path, numbers: dict[str, int], said: str
) -> None:
    async with keeping_nodes(tmp_path, "b") as [b]:
        source = replace(b.source(wanted()), node="a")

        def lie(reader: socket.socket) -> None:
            nonce = b"n" * NONCE_BYTES
            reader.sendall(nonce)
            request = reader.recv(REQUEST_BYTES, socket.MSG_WAITALL)[:-TAG_BYTES]
            commit = dataclasses.replace(Commit(7, 1, 4, 0, 1, 0, 1, 1), **numbers)
            exchange = Exchange(source.key, nonce, request)
            tag = exchange.data_tag()
            tag.update(b"lies")
            reader.sendall(exchange.answer(commit) + b"lies" + exchange.end(tag, 0, whole=True))
            reader.recv(1)

        async with answering(lie) as port:
            b.begin(2, a_resume(1, 7, replace(source, port=port)))
            assert said in await failed(b)


@pytest.mark.parametrize(
    ("peer", "said"), [(silent, "was too slow"), (trickling, "was too slow"), (talkative, ""), (gone, "")]
)
async def test_a_strange_holder_costs_a_bounded_time(
    tmp_path: Path, peer: Peer, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_fetch, "GRACE_S", 0.3)
    async with keeping_nodes(tmp_path, "b") as [b], answering(peer) as port:
        b.begin(2, a_resume(1, 7, replace(b.source(wanted()), node="a", port=port)))
        problem = await failed(b)
    assert "could not be received from node a" in problem
    assert said in problem


async def test_an_error_of_the_receiving_node_itself_is_not_laid_on_the_holder(tmp_path: Path) -> None:
    def no_room(_: Commit) -> Place:
        raise OSError(errno.EMFILE, "too many open files")

    async with keeping_nodes(tmp_path, "a") as [a]:
        await holder(a)
        name = PartName(RUN, 0, 1, 7, Kind.BIG)
        with pytest.raises(OSError, match="too many open files"):
            await asyncio.to_thread(part_fetch.fetch, a.source(wanted()), name, no_room, threading.Event())


async def test_a_holder_that_stops_in_the_middle_is_given_up_with_the_round(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b") as [a, b]:
        await holder(a)
        async with between(a.source(wanted(small=False)), lambda _, before: before < 100_000) as source:
            b.begin(2, a_resume(1, 7, source))
            await b.reports(lambda holding: holding.used_bytes > 0, workers=True)
            worker = b.worker(b.begin(3))
            assert (await worker.resume())[0].step == -1
            await b.until(lambda: b.keeper._resources.arenas.memory.used_bytes == 0)


@pytest.mark.parametrize("breaks", [1, 2])
async def test_a_transfer_that_takes_longer_than_the_patience_and_breaks_off_is_tried_again(
    tmp_path: Path, breaks: int
) -> None:
    left = breaks

    def break_off(_: bytearray, before: int) -> bool:
        nonlocal left
        if before > 100_000 and left:
            left -= 1
            raise ConnectionError
        return True

    async with keeping_nodes(tmp_path, "a", "b", patience_s=0) as [a, b]:
        await holder(a)
        async with between(a.source(wanted(small=False)), break_off) as source:
            path = b.begin(2, a_resume(1, 7, source))
            if breaks > 1:
                assert "broke off" in await failed(b)
            else:
                assert (await b.worker(path).resume())[1] == {(0, True): BIG}
