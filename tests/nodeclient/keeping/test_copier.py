"""Copies of what other nodes keep: they come in the background, whole or not at all, and stay while they are wanted."""

import asyncio
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinatord.protocol.kept_state import KeptCopy, KeptStep
from nodeclient.core.effects import CopyKept, Protect
from nodeclient.core.events import KeptChanged
from nodeclient.keeping.copier import BURST_S, RateLimit
from tests.nodeclient.keeping.stage import (
    BIG,
    RUN,
    SMALL,
    UNUSED_PORT,
    KeepingNode,
    KeepingWorker,
    a_resume,
    keeping_nodes,
    wanted,
)
from workerlib.contract.arena import WITH_SMALL

RATE = 1e9
"""Fast enough that no test waits for it."""

FULL = BIG + SMALL


async def holder(node: KeepingNode, *steps: int) -> KeepingWorker:
    """Have a node hold these steps of rank 0, each with the small state in it."""
    worker = node.worker(node.begin(1))
    await worker.reserve(len(FULL))
    for step in steps:
        worker.save(step, FULL, None, WITH_SMALL)
    await node.until(lambda: len(steps_of(node)) == len(steps))
    node.events.clear()
    return worker


def copy_of(node: KeepingNode, step: int) -> KeptCopy:
    return KeptCopy(1, step, node.source(wanted(small=False)))


def want(node: KeepingNode, *copies: KeptCopy, protected: tuple[int, ...] = ()) -> None:
    """Tell a node which copies to get, and what to protect."""
    node.keeper.carry_out(Protect(RUN, tuple(KeptStep(1, step) for step in protected)))
    node.keeper.carry_out(CopyKept(RUN, copies))


def steps_of(node: KeepingNode) -> list[int]:
    """Return the steps that a node reports to hold of rank 0."""
    holding = node.holding(workers=True)
    return [] if holding is None else sorted(part.step for part in holding.parts if part.big)


async def test_a_copy_has_the_small_state_too_and_outlives_the_node_that_it_is_of(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b", copy_rate=RATE) as [a, b]:
        await holder(a, 7)
        want(b, copy_of(a, 7), protected=(7,))
        await b.until(lambda: steps_of(b) == [7])
        assert KeptChanged() in b.events
        holding = b.reported(workers=True)
        assert all(part.small and part.protected for part in holding.parts)
        a.keeper.close()
        await asyncio.sleep(0)  # its port is closed, and so is what waits there
        worker = b.worker(b.begin(2, a_resume(1, 7, b.source(wanted()))))
        _, found = await worker.resume()
        assert found == {(0, True): FULL}


async def test_a_protected_copy_stays_until_it_is_let_go_and_the_newer_one_takes_the_other_place(
    tmp_path: Path,
) -> None:
    async with keeping_nodes(tmp_path, "a", "b", copy_rate=RATE) as [a, b]:
        await holder(a, 7, 8, 9)
        for step, protected, held in ((7, (7,), [7]), (8, (7, 8), [7, 8]), (9, (8, 9), [8, 9])):
            want(b, copy_of(a, step), protected=protected)
            await b.until(lambda held=held: steps_of(b) == held)  # type: ignore[misc]
        used = b.reported(workers=True)
        assert 2 * len(FULL) < used.used_bytes < 2.1 * len(FULL)


async def test_copies_that_nobody_protects_or_wants_are_dropped(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b", copy_rate=RATE) as [a, b]:
        await holder(a, 7)
        want(b, copy_of(a, 7), protected=(7,))
        await b.until(lambda: steps_of(b) == [7])
        want(b, protected=(7,))
        assert steps_of(b) == [7]
        want(b, protected=())
        want(b)
        assert steps_of(b) == []
        assert b.holding(workers=True) is None


async def test_a_copy_is_of_the_same_run(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b", copy_rate=RATE) as [a, b]:
        await holder(a, 7)
        b.keeper.carry_out(CopyKept("another", (copy_of(a, 7),)))
        want(b, copy_of(a, 7), protected=(7,))
        await b.until(lambda: steps_of(b) == [7])
        b.keeper.carry_out(CopyKept("another", ()))
        assert b.holding(workers=True, run="another") is None


async def test_a_lack_of_memory_is_said_in_words_and_own_state_comes_first(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b", copy_rate=RATE, memory=int(3.5 * len(FULL))) as [a, b]:
        await holder(a, 7)
        want(b, copy_of(a, 7), protected=(7,))
        await b.until(lambda: steps_of(b) == [7])
        worker = b.worker(b.begin(2))
        await worker.reserve(len(FULL))
        assert worker.arena is not None
        assert steps_of(b) == []
        want(b, copy_of(a, 7), protected=(7,))
        want(b, copy_of(a, 7), copy_of(a, 7), protected=(7,))

        def problem() -> str:
            holding = b.holding(workers=True)
            return "" if holding is None else holding.copy_problem

        await b.until(lambda: bool(problem()))
        assert "there is no copy of node a here: to keep 2 copies of the state of rank 0 takes 6.16 MB" in problem()
        assert "--keep-memory is" in problem()
        want(b)
        assert problem() == ""


async def test_a_holder_that_is_not_there_is_asked_again_and_a_copy_that_is_not_wanted_any_more_is_not(
    tmp_path: Path,
) -> None:
    async with keeping_nodes(tmp_path, "a", "b", copy_rate=RATE) as [a, b]:
        await holder(a, 7)
        lost = KeptCopy(1, 7, replace(a.source(wanted(small=False)), port=UNUSED_PORT))
        want(b, lost, protected=(7,))
        await b.until(lambda: any("the state of node a cannot be copied" in text for text in b.texts))
        want(b, copy_of(a, 7), protected=(7,))
        await b.until(lambda: steps_of(b) == [7])


async def test_a_part_that_cannot_be_copied_is_said_once_and_although_others_can(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b", copy_rate=RATE) as [a, b]:
        small = a.worker(a.begin(1), rank=1, world_size=2)
        await small.reserve(1000)
        lost = KeptCopy(1, 7, replace(a.source(wanted(small=False)), node="c", port=UNUSED_PORT))
        for step in (7, 8):
            small.save(step, b"small", None)
            await a.until(lambda step=step: step in steps_of(a))  # type: ignore[misc]
            coming = KeptCopy(1, step, a.source(wanted(1, small=False)))
            want(b, replace(lost, step=step), coming, protected=(step,))
            await b.until(lambda step=step: step in steps_of(b))  # type: ignore[misc]
            assert "the state of node c cannot be copied" in b.reported(workers=True).copy_problem
        assert sum("node c" in text for text in b.texts) == 1


async def test_a_copy_that_is_given_up_says_nothing_about_its_holder(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b", copy_rate=RATE) as [a, b]:
        await holder(a, 7)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.setblocking(False)
            source = replace(a.source(wanted(small=False)), node="c", port=silent.getsockname()[1])
            want(b, KeptCopy(1, 6, source))
            connection, _ = await asyncio.get_running_loop().sock_accept(silent)
            with connection:
                want(b, copy_of(a, 7), protected=(7,))
                await b.until(lambda: steps_of(b) == [7])
        assert not any("node c" in text for text in b.texts)


@given(st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 1 << 20)), min_size=1, max_size=50))
def test_no_more_comes_in_any_time_than_the_rate_allows_and_it_is_used_up_where_more_is_wanted(
    acts: list[tuple[float, int]],
) -> None:
    limit, now, taken, waited = RateLimit(1e6, 0.0), 0.0, 0, 0.0
    before: list[tuple[float, int]] = []
    for pause_s, size in acts:
        before.append((now, taken))
        taken += size
        wait_s = limit.spend(size, now)
        assert wait_s >= 0
        now += wait_s
        waited += wait_s
        assert all(taken - then <= 1e6 * (now - at + BURST_S) + 1e-3 for at, then in before)
        now += pause_s
    if all(pause_s == 0 for pause_s, _ in acts) and waited:
        assert taken == pytest.approx(1e6 * now)
