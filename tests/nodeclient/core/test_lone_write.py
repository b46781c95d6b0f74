"""What a node writes that ends without a coordinator: the newest step that it has whole, and nothing that is old."""

from __future__ import annotations

import pytest

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.kept_parts import KeptParts, KeptStep, WantedParts
from coordinatord.protocol.messages import Goal
from coordinatord.protocol.persisted_state import PersistedStep, PersistOrder
from nodeclient.core.agent_settings import WRITE_ALONE_S, Settings
from nodeclient.core.effects import Exit, Persist, PersistAlone
from nodeclient.core.events import PersistedAlone
from nodeclient.core.lone_write import NewestOnDisk, lone_order, may_become_newest, newest_in_part
from tests.support.bench import Bench
from tests.support.kept_state import kept_parts

RUN = "r-1"


def of_rank(
    rank: int, step: int, shards: int = 1, number: int = 1, *, small: bool = True, digest: int | None = None
) -> KeptParts:
    ranks = range(rank, rank + 1)
    return kept_parts(number, step, ranks, world_size=4, shards=shards, small=small, digest=digest)


def on_disk(step: int, run: str = RUN, number: int = 1) -> PersistedStep:
    return PersistedStep(1, run, (kept_parts(number, step),))


def wanted(rank: int, *, big: bool = True, small: bool = True) -> WantedParts:
    return WantedParts(rank, 1, big, small)


def test_the_newest_whole_step_is_written_each_shard_once_and_the_small_state_of_each_rank() -> None:
    parts = [of_rank(2, 7), of_rank(3, 7), of_rank(2, 6), of_rank(3, 8, shards=4)]
    parts_of_7 = (wanted(2), wanted(3, big=False))
    assert lone_order(parts, (), RUN) == PersistOrder(1, 7, 4, 1, parts_of_7, commit=True, small=2)
    shards = [of_rank(rank, 5, shards=4, small=rank == 1) for rank in range(4)]
    order = lone_order(shards, (), RUN)
    assert order is not None
    assert (order.shards, order.small) == (4, 1)
    assert order.parts == tuple(wanted(rank, small=rank == 1) for rank in range(4))


@pytest.mark.parametrize(
    ("parts", "there", "why"),
    [
        ([], [], "it holds nothing"),
        ([of_rank(0, 7, shards=2)], [], "the other shard is with another node"),
        ([of_rank(0, 7, shards=2), of_rank(1, 7, shards=3)], [], "they are not of one step"),
        ([of_rank(0, 7, number=0)], [], "it came from the disk"),
        ([of_rank(0, 7, digest=5), of_rank(1, 7, digest=6)], [], "its workers have different states"),
        ([of_rank(0, 7)], [on_disk(7)], "it is there"),
        ([of_rank(0, 7)], [on_disk(3, number=2)], "a later round is there"),
    ],
)
def test_nothing_is_written_that_is_not_whole_or_not_new(
    parts: list[KeptParts], there: list[PersistedStep], why: str
) -> None:
    assert lone_order(parts, there, RUN) is None, why


def test_what_another_run_has_on_the_disk_holds_nothing_up() -> None:
    assert lone_order([of_rank(0, 7)], [on_disk(9, run="r-0"), on_disk(6)], RUN) is not None


def test_the_user_learns_of_a_newer_step_of_which_a_node_has_a_part() -> None:
    parts = [of_rank(0, 7, shards=2), kept_parts(1, 9, big=False)]
    assert newest_in_part(parts, [on_disk(6)], RUN) == KeptStep(1, 7)
    assert newest_in_part(parts, [on_disk(7)], RUN) is None


def test_a_step_becomes_the_newest_only_if_nothing_newer_has_come_meanwhile() -> None:
    at = KeptStep(2, 7)
    assert may_become_newest(at, RUN, None, 0)
    assert may_become_newest(at, RUN, NewestOnDisk(RUN, KeptStep(1, 90), 5), 3)
    assert not may_become_newest(at, RUN, NewestOnDisk(RUN, KeptStep(2, 7), 5), 3)
    assert not may_become_newest(at, RUN, NewestOnDisk(RUN, KeptStep(3, 1), 5), 3)
    assert may_become_newest(at, RUN, NewestOnDisk("r-0", KeptStep(9, 90), 3), 3), "the run began with it"
    assert not may_become_newest(at, RUN, NewestOnDisk("r-2", KeptStep(1, 1), 4), 3), "a later run has taken its place"


def alone(*, persists: bool = True) -> Bench:
    """Return a node that trains, and whose coordinator is gone."""
    bench = Bench(Settings(2, 60.0, 10.0, keeps=True, persists=persists)).running()
    bench.close("Connection refused")
    return bench


def end_workers(bench: Bench) -> None:
    bench.all_exited(0)
    bench.swept()


def test_a_node_that_leaves_without_a_coordinator_stays_until_the_disk_has_what_it_keeps() -> None:
    bench = alone()
    bench.leave()
    assert bench.count(PersistAlone) == 0, "its workers may save a newer step"
    end_workers(bench)
    assert bench.last(PersistAlone) == PersistAlone(bench.observed.run)
    assert not bench.agent.exited
    bench.submit(PersistedAlone())
    assert bench.last(Exit).code == 128 + 15
    assert bench.count(PersistAlone) == 1


def test_the_disk_has_two_minutes_and_a_second_signal_ends_them() -> None:
    bench = alone()
    bench.leave()
    end_workers(bench)
    bench.advance(WRITE_ALONE_S - 0.1)
    assert not bench.agent.exited
    bench.advance(0.2)
    assert bench.last(Exit).code == 128 + 15

    bench = alone()
    bench.leave()
    end_workers(bench)
    bench.leave()
    assert bench.agent.exited


def test_a_coordinator_that_is_back_changes_nothing_about_a_write_that_has_begun() -> None:
    bench = alone()
    bench.leave()
    end_workers(bench)
    bench.open()
    bench.receive(Goal.STOP, persist=PersistOrder(1, 7, 2, 1, (wanted(0),), commit=False))
    assert bench.count(Persist) == 0
    assert not bench.agent.exited
    bench.submit(PersistedAlone())
    assert bench.agent.exited


def test_a_node_that_gives_up_its_search_writes_what_it_keeps() -> None:
    bench = alone()
    bench.advance(10_000.0)
    end_workers(bench)
    bench.advance(59.9)
    assert bench.count(PersistAlone) == 0
    bench.advance(0.2)
    assert bench.count(PersistAlone) == 1
    assert not bench.agent.exited
    bench.submit(PersistedAlone())
    assert bench.agent.exited


def test_a_node_that_has_given_up_is_in_no_round_of_a_coordinator_that_is_back() -> None:
    bench = alone()
    bench.advance(10_000.0)
    end_workers(bench)
    bench.advance(60.1)
    assert bench.count(PersistAlone) == 1
    bench.open()
    bench.receive(Goal.WAIT)
    bench.close("Connection refused")
    bench.open()
    assert bench.observed.leaving, "it goes as soon as it has written"
    assert not bench.agent.exited
    bench.submit(PersistedAlone())
    assert bench.last(Exit).code == ExitCode.UNAVAILABLE


def test_nothing_is_written_without_a_disk_or_a_run_or_after_success() -> None:
    without_disk, without_run, succeeded = alone(persists=False), Bench(Settings(2, 60.0, 10.0, persists=True)), alone()
    without_disk.leave()
    end_workers(without_disk)
    without_run.leave()
    end_workers(succeeded)
    succeeded.leave()
    for bench in (without_disk, without_run, succeeded):
        assert bench.agent.exited
        assert bench.count(PersistAlone) == 0
