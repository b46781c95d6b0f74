"""Who gets the memory of a worker that has ended, where several end at nearly the same moment."""

from dataclasses import replace

from nodeclient.keeping.round_memory import Loan, RoundMemory
from workerlib.contract.channel_messages import Reserve

WANTED = Reserve(3_000_000, 1_000, 0, 1)


def memory_with(*given: int, refused: tuple[int, ...] = ()) -> RoundMemory:
    """Return the memory of a round in which some workers got memory, and others did not."""
    memory = RoundMemory()
    for local_rank in (*given, *refused):
        assert memory.request(local_rank, WANTED)
        if local_rank in given:
            memory.record_reserved(local_rank)
        memory.reserving.discard(local_rank)
    return memory


def test_memory_that_comes_after_the_end_of_its_worker_is_lent() -> None:
    memory = memory_with(refused=(1,))
    assert memory.request(0, WANTED)
    memory.end(0)
    assert memory.lend({1}) is None
    memory.record_reserved(0)
    memory.reserving.discard(0)
    assert memory.lend({1}) == Loan(0, 1)


def test_a_worker_that_waits_for_memory_borrows_once_it_is_refused() -> None:
    memory = memory_with(0)
    assert memory.request(1, WANTED)
    memory.end(0)
    assert memory.lend({1}) is None
    memory.reserving.discard(1)
    assert memory.lend({1}) == Loan(0, 1)


def test_nothing_is_lent_twice() -> None:
    memory = memory_with(0, refused=(1, 2))
    memory.end(0)
    assert memory.lend({1, 2}) == Loan(0, 1)
    assert memory.lend({1, 2}) is None
    assert memory.lend({2}) is None, "the borrower may still write: only its connection is gone"
    memory.end(1)
    assert memory.lend({1, 2}) == Loan(0, 2)
    memory.end(2)
    assert memory.lend({1, 2}) is None


def test_nothing_is_lent_to_a_worker_that_has_another_shard() -> None:
    memory = RoundMemory()
    for shard in range(2):
        assert memory.request(shard, replace(WANTED, shard=shard, shards=2))
    memory.record_reserved(0)
    memory.reserving.clear()
    memory.end(0)
    assert memory.lend({1}) is None


def test_two_that_end_lend_to_one_that_is_left_once() -> None:
    memory = memory_with(0, 1, refused=(2, 3))
    memory.end(0)
    assert memory.lend({1, 2, 3}) is None
    memory.end(1)
    assert memory.lend({2, 3}) == Loan(1, 2)
    assert memory.lend({2, 3}) is None
    memory.end(2)
    assert memory.lend({3}) == Loan(1, 3)


def test_a_worker_that_has_ended_is_given_nothing() -> None:
    memory = memory_with(0, refused=(1,))
    memory.end(0)
    memory.end(1)
    assert not memory.request(0, WANTED)
    assert memory.lend({0, 1}) is None, "the connection of one that has ended may last longer than its process"


def test_the_end_of_a_worker_is_awaited_only_where_its_memory_is_needed() -> None:
    memory = memory_with(0, 1, refused=(2,))
    assert memory.awaited({1, 2}) == set()
    assert memory.awaited({2}) == {0, 1}
    memory.end(0)
    assert memory.awaited({2}) == {1}
    assert memory.awaited(set()) == set()
