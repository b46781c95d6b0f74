"""A node keeps what its workers save, and has it ready for those of the next round."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from coordinatord.protocol.kept_state import KeptParts, KeptStep, Restoring
from coordinatord.protocol.messages import Ended, Observed, Phase
from nodeclient.core.effects import HaltWorkers, Protect, Restore, SaveKept, TellAlike
from nodeclient.core.events import Keeping, KeptChanged, KeptSaved
from tests.nodeclient.keeping.stage import BIG, RUN, SMALL, Hanging, KeepingNode, a_resume, keeping_nodes, wanted
from tests.support.programs import TIMEOUT_S, open_files
from workerlib.contract.arena import PENDING
from workerlib.contract.channel_messages import (
    BEFORE_NAMED,
    NOTHING,
    AskRestore,
    Checkpointed,
    Checkpointing,
    Comparison,
    FirstState,
    HaltAt,
    Halted,
    Interval,
    NotSaved,
    Pageable,
    RefusedMemory,
    Reserve,
    Reserved,
    Saved,
    SaveNow,
    Unkept,
    Unstepped,
)

KEPT = KeptParts(1, 7, 1, 1, 0, 1, 0, big=True, small=True, pending=False, protected=False)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[KeepingNode]:
    async with keeping_nodes(tmp_path, "a") as [node]:
        yield node


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[KeepingNode]:
    """Yield a node of two workers."""
    async with keeping_nodes(tmp_path, "a", workers=2) as [node]:
        yield node


async def saved(node: KeepingNode, step: int = 7, flags: int = 0) -> None:
    """Have a worker of round 1 save a step, and die."""
    worker = node.worker(node.begin(1))
    assert isinstance(await worker.reserve(), Reserved)
    worker.save(step, flags=flags)
    worker.die()
    await node.reports(lambda holding: holding.save_s is not None)
    await node.keeper.end_round()


async def test_what_a_worker_saved_is_there_when_it_is_dead(node: KeepingNode) -> None:
    assert node.holding() is None
    await saved(node)
    holding = node.reported()
    assert holding.parts == (KEPT,)
    assert holding.save_s == 0.25
    assert holding.used_bytes > 3 * len(BIG)
    worker = node.worker(node.begin(2, a_resume(1, 7, node.source(wanted()))))
    resume, data = await worker.resume()
    assert (resume.round, resume.step, resume.world_size) == (1, 7, 1)
    assert data == {(0, True): BIG, (0, False): SMALL}
    assert node.texts[-1] == "round 2 resumes at step 7 from memory, 0 steps redone: all of it is on this host"
    again = node.reported(workers=True)
    assert again.restoring is Restoring.READY


async def test_that_all_workers_can_be_asked_to_stand_still_is_reported_at_once(two: KeepingNode) -> None:
    first, second = two.start(1)
    await first.reserve()
    assert KeptChanged() not in two.events
    await second.reserve()
    assert two.events[-1] == KeptChanged()
    holding = two.reported(workers=True)
    assert holding.can_halt
    await first.reserve(2 * len(BIG))
    assert two.events.count(KeptChanged()) == 1


@pytest.mark.parametrize(
    ("redone", "words"),
    [(None, ", an unknown number of steps redone"), (1, ", 1 step redone"), (1_204, ", 1,204 steps redone")],
)
async def test_the_line_about_a_resume_says_what_is_done_again(
    node: KeepingNode, redone: int | None, words: str
) -> None:
    await saved(node)
    known = replace(a_resume(1, 7, node.source(wanted())), redone=redone)
    await node.worker(node.begin(2, known)).resume()
    assert node.texts[-1] == f"round 2 resumes at step 7 from memory{words}: all of it is on this host"


async def test_workers_that_never_call_ctx_step_are_named_in_one_warning_and_in_reports_of_their_round(
    two: KeepingNode,
) -> None:
    for number in (1, 2):
        for worker, rank in zip(two.start(number), (5, 4), strict=True):
            worker.send(Unstepped(rank))
        await two.reports(lambda holding: holding.unstepped == (4, 5))
        observed = Observed(RUN, number, Phase.RUNNING, 2, False, None, 0.0, True)
        two.keeper.warn_of_unstepped(observed)
    words = "ranks 4, 5 have not called ctx.step, so no step is kept; call it on every rank"
    assert two.texts.count(words) == 1
    kept = two.keeper.complete(replace(observed, steps=(7, None))).kept
    assert kept is not None
    assert kept.unstepped == (4,), "the first one called it after all"


async def test_what_workers_do_not_keep_is_said_once_and_with_each_resume_of_the_run(node: KeepingNode) -> None:
    await saved(node)
    for number in (2, 3):
        worker = node.worker(node.begin(number, a_resume(1, 7, node.source(wanted()))))
        await worker.resume()
        worker.send(Unkept("the state of SGD"))
        worker.send(Unkept("more"))
        holding = await node.reports(lambda holding: "more" in holding.unkept)
    assert holding.unkept == "the state of SGD and more"
    assert node.texts.count("not kept, and lost with its worker: the state of SGD") == 1
    words = "round 3 resumes at step 7 from memory, 0 steps redone, without the state of SGD and more: all of it"
    assert any(text.startswith(words) for text in node.texts)


async def test_slow_saves_are_said_once_a_round_and_reported_while_it_is_the_present_one(two: KeepingNode) -> None:
    why = "cudaHostRegister has refused 1.0 GB: out of memory"
    for number in (1, 2):
        path = two.begin(number)
        assert two.holding(workers=True) is None, "what the round before has reported is over"
        two.worker(path).send(Pageable(why))
        await two.reports(lambda holding: holding.pageable == why, workers=True)
        other = two.worker(path, local_rank=1)
        other.send(Pageable("the other one's reason"))
        other.send(Interval(8, 0.01, 0))
        holding = await two.reports(lambda holding: holding.interval_steps == 8, workers=True)
        assert holding.pageable == why
        assert [text for text in two.texts if "page-locked" in text] == number * [
            f"saves from the GPU are slow: their memory is not page-locked: {why}"
        ]


async def test_workers_wait_until_all_holders_are_known(node: KeepingNode) -> None:
    await saved(node)
    known = a_resume(1, 7, node.source(wanted()))
    worker = node.worker(node.begin(2, replace(known, sources=(), complete=False)))
    assert node.holding(workers=True) is not None
    node.keeper.carry_out(Restore(RUN, 2, known))
    assert (await worker.resume())[0].step == 7


async def test_a_worker_that_ends_as_it_is_answered_leaves_the_others_their_answer(two: KeepingNode) -> None:
    first, second = two.start(2, a_resume(1, 7, complete=False))
    for worker in (first, second):
        worker.send(AskRestore())
        worker.send(Checkpointing())
    await two.reports(lambda holding: holding.can_halt, workers=True)
    first.die()
    two.keeper.carry_out(Restore(RUN, 2, None))
    assert await second.receive() == (NOTHING, [])


async def test_while_workers_live_only_big_states_are_named(node: KeepingNode) -> None:
    worker = node.worker(node.begin(1))
    await worker.reserve()
    worker.save(6, big=None)
    worker.save(7)
    worker.save(8, big=None, flags=PENDING)
    holding, after = node.reported(workers=True), node.reported()
    assert holding.parts == (replace(KEPT, small=False),)
    assert {(part.step, part.big, part.small, part.pending) for part in after.parts} == {
        (6, False, True, False),
        (7, True, True, False),
        (8, False, False, True),
    }


async def test_the_next_worker_gets_the_same_memory(node: KeepingNode) -> None:
    await saved(node)
    worker = node.worker(node.begin(2))
    await worker.reserve()
    assert worker.arena is not None
    assert [place.read() is not None for place in worker.arena.generations].count(True) == 1
    used = node.holding()
    await worker.reserve(len(BIG) // 2)
    assert node.holding() == used


async def test_a_larger_arena_takes_the_place_of_one_when_it_has_something_whole(node: KeepingNode) -> None:
    await saved(node)
    before = node.reported()
    worker = node.worker(node.begin(2))
    await worker.reserve(2 * len(BIG))
    between = node.reported()
    assert between.parts == before.parts
    assert between.used_bytes > 2.5 * before.used_bytes
    worker.save(9, BIG * 2)
    after = await node.reports(lambda holding: len(holding.parts) == 1)
    assert [part.step for part in after.parts] == [9]
    assert after.used_bytes < between.used_bytes


def steps_of(node: KeepingNode) -> set[int]:
    holding = node.holding()
    return {part.step for part in holding.parts} if holding is not None else set()


async def test_a_smaller_arena_stays_while_a_step_in_it_is_protected(node: KeepingNode) -> None:
    worker = node.worker(node.begin(1))
    await worker.reserve()
    worker.save(7)
    node.keeper.carry_out(Protect(RUN, (KeptStep(1, 7),)))
    await worker.reserve(2 * len(BIG))
    worker.save(9, BIG * 2)
    await node.reports(lambda holding: holding.save_s is not None)
    assert steps_of(node) == {7, 9}, "other nodes may not have step 9"
    node.keeper.carry_out(Protect(RUN, (KeptStep(1, 9),)))
    assert steps_of(node) == {9}


async def test_nothing_of_another_run_is_kept(node: KeepingNode) -> None:
    await saved(node)
    node.begin(1, run="r-2")
    assert node.holding(run="r-2") is None
    assert node.holding(run=RUN) is None


async def test_memory_that_is_refused_is_refused_in_words(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", memory=10_000_000) as [node]:
        worker = node.worker(node.begin(1))
        refused = await worker.reserve(4_000_000)
        assert isinstance(refused, RefusedMemory)
        assert refused.why == "to keep three generations of a worker's state takes 12 MB, and --keep-memory is 10 MB"
        assert node.texts == [f"the state of local rank 0 is not kept: {refused.why}"]
        assert isinstance(await worker.reserve(1_000_000), Reserved)
        second = await worker.reserve(3_000_000)
        assert isinstance(second, RefusedMemory)
        assert "of which 3.07 MB are used" in second.why


async def test_no_more_is_taken_than_the_host_has(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", memory=2**60) as [node]:
        worker = node.worker(node.begin(1))
        refused = await worker.reserve(2**45)
        assert isinstance(refused, RefusedMemory)
        assert "and this host has" in refused.why
        assert isinstance(await worker.reserve(2**62), RefusedMemory), "no memory has such a size"


async def test_steps_are_protected_in_all_arenas_also_in_later_ones(node: KeepingNode) -> None:
    worker = node.worker(node.begin(1))
    await worker.reserve()
    worker.save(7)
    node.keeper.carry_out(Protect(RUN, (KeptStep(1, 7),)))
    node.keeper.carry_out(Protect("another", ()))
    for step in range(8, 12):
        worker.save(step)
    holding = node.reported(workers=True)
    assert [part.step for part in holding.parts if part.protected] == [7]
    await worker.reserve(2 * len(BIG))
    assert worker.arena is not None
    assert worker.arena.protected == {(1, 7)}


# At the break


async def test_whoever_keeps_state_is_asked_to_save_it(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", workers=3) as [node]:
        first, second, third = node.start(1)
        await first.reserve()
        await second.reserve()
        assert [type(event) for event in node.events] == [Keeping, Keeping]
        node.events.clear()
        node.keeper.carry_out(SaveKept(planned=True))
        order, _ = await first.receive()
        assert order == SaveNow(1, True)
        assert (await second.receive())[0] == order
        first.send(Saved(7, 0.1, 100, 0))  # it was on its way
        first.send(Saved(8, 0.1, 100, 1))
        second.send(NotSaved("the step is not whole", 1))
        await node.until(lambda: node.events == [KeptSaved()])
        assert node.texts == [], "one has saved it"
        third.die()


async def test_the_reported_time_of_a_save_is_that_of_the_slowest_worker(two: KeepingNode) -> None:
    first, second = two.start(1)
    first.send(Saved(7, 3.0, 100, 0))
    await two.reports(lambda holding: holding.save_s == 3.0)
    second.send(Saved(7, 2.0, 100, 0))
    second.send(Interval(128, 1.0, 0))
    holding = await two.reports(lambda holding: holding.interval_steps == 128)
    assert holding.save_s == 3.0
    first.send(Saved(7, 0.0, 0, 1))  # it was asked to save a step that it had saved
    first.send(Interval(256, 1.0, 0))
    holding = await two.reports(lambda holding: holding.interval_steps == 256)
    assert holding.save_s == 3.0


async def test_a_script_that_writes_checkpoints_is_waited_for_until_one_is_written(node: KeepingNode) -> None:
    worker = node.worker(node.begin(1))
    worker.send(Checkpointing())
    await node.until(lambda: KeptChanged() in node.events)
    holding = node.reported(workers=True)
    assert holding.can_halt, "though it keeps nothing"
    node.keeper.carry_out(HaltWorkers(None))
    assert (await worker.receive())[0] == HaltAt(1, BEFORE_NAMED)
    worker.send(Halted(7, 1))
    await node.reports(lambda now: now.halts_after == 7, workers=True)
    node.keeper.carry_out(HaltWorkers(8))
    assert (await worker.receive())[0] == HaltAt(2, 8)
    worker.send(Checkpointed(7, 0))  # it was on its way
    worker.send(NotSaved("what ctx.keep was given has changed", 0))
    worker.send(Checkpointed(8, 2))
    await node.until(lambda: KeptSaved() in node.events)
    assert node.texts == []


async def test_if_nobody_has_saved_it_is_said_why(node: KeepingNode) -> None:
    worker = node.worker(node.begin(1))
    await worker.reserve()
    node.keeper.carry_out(SaveKept(planned=False))
    await worker.receive()
    worker.send(NotSaved("a step was not whole within 2 s", 1))
    await node.until(lambda: KeptSaved() in node.events)
    assert node.texts == ["round 1 ends with what was saved before: a step was not whole within 2 s"]


async def test_nobody_waits_for_a_worker_that_dies_while_it_saves(two: KeepingNode) -> None:
    workers = two.start(1)
    for worker in workers:
        await worker.reserve()
    two.events.clear()
    two.keeper.carry_out(SaveKept(planned=False))
    workers[0].die()
    two.keeper.record_exit(1)
    await two.until(lambda: two.events == [KeptSaved()])


async def test_where_nobody_keeps_state_nothing_is_waited_for(node: KeepingNode) -> None:
    node.begin(1)
    node.keeper.carry_out(SaveKept(planned=False))
    assert node.events == [KeptSaved()]


async def test_a_state_that_was_being_written_is_not_held(node: KeepingNode) -> None:
    worker = node.worker(node.begin(1))
    await worker.reserve()
    worker.save(7)
    assert worker.arena is not None
    torn = next(place for place in worker.arena.generations if place.read() is None)
    torn.invalidate()
    torn.data[:3] = b"new"
    worker.die()
    holding = node.reported()
    assert [part.step for part in holding.parts] == [7]


# Damage


async def test_a_bit_that_flips_in_memory_is_found_and_the_part_withdrawn(node: KeepingNode) -> None:
    worker = node.worker(node.begin(1))
    await worker.reserve()
    worker.save(7)
    worker.save(8)
    await node.keeper.end_round()
    await node.damage(worker, 8)
    node.events.clear()
    node.begin(2, a_resume(1, 8, node.source(wanted())))
    await node.until(lambda: node.events.count(KeptChanged()) == 2)
    holding = node.reported(workers=True)
    assert holding.restoring is Restoring.FAILED
    assert holding.problem == "the state of rank 0 at step 8 is damaged in memory"
    assert [part.step for part in holding.parts] == [7]
    third = node.worker(node.begin(3, a_resume(1, 7, node.source(wanted()))))
    assert (await third.resume())[1][0, True] == BIG


async def test_numbers_that_cannot_be_are_no_parts(node: KeepingNode) -> None:
    worker = node.worker(node.begin(1))
    await worker.reserve()
    worker.round = 2**40
    worker.save(7)
    holding = node.reported()
    assert holding.parts == ()


async def test_without_memory_nothing_is_offered(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", memory=0) as [node]:
        assert node.keeper.offer is None
        assert node.keeper.listen(tmp_path, 1) == {}
        assert node.holding() is None


async def test_no_memory_is_allocated_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process exits when its threads have ended, and to allocate takes a second for each gigabyte."""
    slow = Hanging("posix_fallocate")
    monkeypatch.setattr(os, "posix_fallocate", slow)
    async with keeping_nodes(tmp_path, "a") as [node]:
        node.worker(node.begin(1)).send(Reserve(10 * len(BIG), len(SMALL), 0, 1))
        await node.until(slow.begins.is_set)
        node.keeper.close()
        slow.heal.set()
        await node.until(lambda: node.keeper._resources.arenas.memory.used_bytes == 0)
        [(_, _, size)] = slow.calls
    assert size < 30 * len(BIG)


async def two_rounds(folder: Path) -> None:
    async with keeping_nodes(folder, "a") as [node]:
        await saved(node)
        await node.worker(node.begin(2, a_resume(1, 7, node.source(wanted())))).resume()


async def test_no_descriptor_is_left_over(tmp_path: Path) -> None:
    before = open_files()
    await two_rounds(tmp_path)
    async with asyncio.timeout(TIMEOUT_S):
        while open_files() > before:
            await asyncio.sleep(0)
            gc.collect()  # again and again: a thread or a callback that still has its last turn keeps something


# Shared states


async def test_a_state_that_several_workers_have_is_named_with_its_digest(two: KeepingNode) -> None:
    workers = two.start(1)
    for worker in workers:
        await worker.reserve()
        worker.save(7)
    workers[1].save(8, big=bytes(reversed(BIG)))
    workers[0].save(8)
    await two.keeper.end_round()
    holding = two.reported()
    digests = {(part.step, part.first_rank): part.digest for part in holding.parts if part.big}
    assert digests.keys() == {(7, 0), (8, 0), (8, 1)}, "ranks with the same state share a group"
    assert None not in digests.values()
    assert digests[8, 0] != digests[8, 1]


async def test_workers_are_told_whether_all_have_the_same_state_once_all_of_their_node_have_one(
    two: KeepingNode,
) -> None:
    first, second = two.start(1)
    first.send(FirstState(5))
    await first.reserve()
    holding = two.holding(workers=True)
    assert holding is None or not holding.first_states, "the other worker may have another state"
    second.send(FirstState(5))
    await two.reports(lambda holding: holding.first_states == (5,), workers=True)
    two.keeper.carry_out(TellAlike(alike=True))
    assert [(await worker.receive())[0] for worker in (first, second)] == [Comparison(alike=True)] * 2


async def test_two_different_states_are_named_at_once_and_who_comes_later_is_told_at_once(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", workers=3) as [node]:
        workers = node.start(1)
        for worker, digest in zip(workers, (7, 5), strict=False):
            worker.send(FirstState(digest))
        await node.reports(lambda holding: holding.first_states == (5, 7), workers=True)
        node.keeper.carry_out(TellAlike(alike=False))
        workers[2].send(FirstState(6))
        assert [(await worker.receive())[0] for worker in workers] == [Comparison(alike=False)] * 3


# A disk without a use

WORDS = (
    "--persist has had nothing to write: no worker of round {} has called ctx.keep, so a later round begins from the "
    "script's own checkpoint"
)

STEPS = (None, 7)
"""The steps of two workers, of which one has reported a step."""


def end_round(node: KeepingNode, steps: tuple[int | None, ...] = (), ended: tuple[Ended, ...] = ()) -> None:
    """End the present round of a node, whose workers have reported these steps and exits with 0."""
    report = Observed(RUN, node.round, Phase.STOPPED, 1, False, None, 0.0, True, steps=steps, ended=ended)
    node.keeper.warn_of_unused_disk(report)


@pytest.mark.parametrize(("steps", "ended"), [(STEPS, ()), ((), (Ended(0, 0.0),))])
async def test_that_no_worker_keeps_state_is_said_once(
    tmp_path: Path, steps: tuple[int | None, ...], ended: tuple[Ended, ...]
) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path) as [node]:
        for number in (1, 2):
            node.begin(number)
            end_round(node, steps, ended)
        assert node.texts == [WORDS.format(1)]


@pytest.mark.parametrize("steps", [(), (None, None)])
async def test_nothing_is_said_of_a_round_that_ended_while_its_workers_started(
    tmp_path: Path, steps: tuple[int | None, ...]
) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path) as [node]:
        node.begin(1)
        end_round(node, steps)
        assert node.texts == []
        node.begin(2)
        end_round(node, STEPS)
        assert node.texts == [WORDS.format(2)]


async def test_nothing_is_said_if_a_worker_has_asked_for_kept_state_or_there_is_no_disk(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path) as [node]:
        await node.worker(node.begin(1)).resume()
        end_round(node, STEPS)
        assert not [text for text in node.texts if "ctx.keep" in text]
    async with keeping_nodes(tmp_path, "b") as [node]:
        node.begin(1)
        end_round(node, STEPS)
        assert not node.texts
