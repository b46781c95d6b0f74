"""The slots of a node's workers: made for each round, read with bounds whatever is in them, and gone in the end."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.fields import DURATION_S_MAX, RANKS_MAX, STEP_MAX
from coordinatord.protocol.kept_state import DIGESTS_MAX, StateDigest
from coordinatord.protocol.messages import Observed, Phase, Section
from nodeclient.workers.step_slots import Slots
from tests.support.builders import an_observed
from tests.support.programs import TIMEOUT_S, open_files
from workerlib.contract import env

SAY_STEPS = "import sys, workerlib; [workerlib.step(int(number)) for number in sys.argv[1:]]"


@pytest.fixture
def slots() -> Iterator[Slots]:
    """Yield the slots of a node of three workers, which gives no warning."""
    slots = Slots(3, pytest.fail)
    yield slots
    slots.close()


def completed(slots: Slots, run: str = "e-1", number: int = 1, **values: Any) -> Observed:
    return slots.complete(an_observed(run=run, round=number, phase=Phase.RUNNING, **values))


def work(environ: Mapping[str, str], *steps: int) -> None:
    """Run a worker that reports some steps and ends."""
    command = [sys.executable, "-c", SAY_STEPS, *map(str, steps)]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=True)
    assert not done.stderr


def write(environ: Mapping[str, str], *words: int) -> None:
    """Write words into a slot, as a worker may that means harm."""
    path, _, offset = environ[env.PROGRESS].rpartition(":")
    file = os.open(path, os.O_RDWR)
    os.pwrite(file, b"".join(word.to_bytes(8, sys.byteorder) for word in words), int(offset))
    os.close(file)


def test_training_is_over_once_each_worker_has_said_so(slots: Slots) -> None:
    assert not slots.training_is_over()
    for environ in slots.begin("e-1", 1):
        assert not slots.training_is_over()
        write(environ, *[0] * env.TRAINED_AT, 1)
    assert slots.training_is_over()
    slots.begin("e-1", 2)
    assert not slots.training_is_over()


def test_an_exit_code_is_known_once_the_slot_of_a_program_that_is_over_has_it_twice(slots: Slots) -> None:
    environs = slots.begin("e-1", 1)
    for environ, codes, over_at in zip(environs, ([7, 7], [0, 1], [0, 0]), (1, 1, 0), strict=True):
        word = int.from_bytes(bytes(codes).ljust(8, b"\0"), sys.byteorder)
        write(environ, *[0] * env.CODE_AT, word, *[0] * (env.OVER_AT - env.CODE_AT - 1), over_at)
    assert slots.exit_codes() == {0: 7}


@pytest.mark.parametrize(("age_s", "least", "most"), [(2.0, 2.0, 60.0), (-60.0, 0.0, 0.0)], ids=["past", "future"])
def test_the_slot_of_a_worker_says_how_long_its_program_has_been_over(
    slots: Slots, age_s: float, least: float, most: float
) -> None:
    assert slots.over_s(1) == 0.0
    environs = slots.begin("e-1", 1)
    assert slots.over_s(1) == 0.0
    write(environs[1], *[0] * env.OVER_AT, time.monotonic_ns() - round(age_s * 1e9))
    assert least <= slots.over_s(1) <= most
    assert slots.over_s(0) == 0.0


@pytest.mark.slow
def test_steps_are_those_of_each_worker_with_the_age_of_the_newest(slots: Slots) -> None:
    environs = slots.begin("e-1", 1)
    assert completed(slots) == an_observed(run="e-1", round=1, phase=Phase.RUNNING), "none has said any"
    before = time.monotonic()
    work(environs[2], 10)
    work(environs[0], 7, 8, 9)
    observed = completed(slots)
    assert observed.steps == (9, None, 10)
    assert observed.step_age_s is not None
    assert 0 < observed.step_age_s < time.monotonic() - before


@pytest.mark.slow
def test_two_steps_of_one_worker_are_told_even_if_both_were_done_between_two_reports(slots: Slots) -> None:
    environs = slots.begin("e-1", 1)
    work(environs[0], 7)
    work(environs[1], 7)
    assert not completed(slots).stepped_twice
    work(environs[2], 7, 8)
    assert completed(slots).stepped_twice
    work(slots.begin("e-1", 2)[0], 9)
    assert not completed(slots, number=2).stepped_twice, "the next round begins anew"


@pytest.mark.slow
def test_that_steps_are_to_come_is_said_until_there_is_one(slots: Slots) -> None:
    environs = slots.begin("e-1", 1)
    announce = "from workerlib import progress; progress.announce()"
    subprocess.run([sys.executable, "-c", announce], env={**os.environ, **environs[1]}, check=True)
    assert (completed(slots).steps, completed(slots).step_age_s) == ((None, None, None), None)
    work(environs[0], 7)
    assert completed(slots).steps == (7, None, None)
    slots.begin("e-1", 2)
    assert completed(slots, number=2).steps == (), "of the next round's workers none has said so"


@pytest.mark.slow
def test_where_a_round_stopped_is_said_until_there_is_another(slots: Slots) -> None:
    work(slots.begin("e-1", 1)[0], 5)
    stopped = an_observed(run="e-1", round=1, phase=Phase.STOPPED)
    assert slots.complete(stopped).steps == (5, None, None)
    for other in (an_observed(run="e-1", round=2), an_observed(run="e-2", round=1), an_observed()):
        assert slots.complete(other) is other, "it speaks of another round, in which no worker has been started"
    slots.begin("e-1", 2)
    assert completed(slots, number=2).steps == ()
    assert slots.complete(stopped) is stopped


def test_a_worker_of_an_old_round_does_not_speak_in_the_next(slots: Slots) -> None:
    path, _, _ = slots.begin("e-1", 1)[0][env.PROGRESS].rpartition(":")
    old = os.open(path, os.O_RDWR)
    slots.begin("e-1", 2)
    at = time.monotonic_ns()
    os.pwrite(old, b"".join(word.to_bytes(8, sys.byteorder) for word in (5, at, 5 ^ at)), 0)
    os.close(old)
    assert completed(slots, number=2).steps == ()


def test_a_slot_that_is_being_written_counts_as_it_was(slots: Slots) -> None:
    environs = slots.begin("e-1", 1)
    at = time.monotonic_ns()
    write(environs[0], 5, at, 5 ^ at)
    assert completed(slots).steps == (5, None, None)
    for words in ((6, at, 5 ^ at), (6, at + 9, 5 ^ at), (5, at + 9, 5 ^ at), (6, at, 6 ^ (at + 9))):
        write(environs[0], *words)
        assert completed(slots).steps == (5, None, None), words
    write(environs[0], 6, at + 9, 6 ^ (at + 9))
    assert completed(slots).steps == (6, None, None)


def test_whatever_workers_write_what_is_said_is_within_bounds(slots: Slots) -> None:
    environs = slots.begin("e-1", 1)
    now = time.monotonic_ns()
    write(environs[0], STEP_MAX + 1, now, (STEP_MAX + 1) ^ now)
    write(environs[1], 2**64 - 2, 2**64 - 2, 0)
    write(environs[2], 4, 0, 4)
    assert completed(slots).steps == (), "no step is so high, and none was done before the host began"
    future = 2**63
    write(environs[0], STEP_MAX, future, STEP_MAX ^ future)
    assert (completed(slots).steps, completed(slots).step_age_s) == ((STEP_MAX, None, None), 0.0)
    write(slots.begin("e-1", 2)[0], 1, 1, 1 ^ 1)
    age_s = completed(slots, number=2).step_age_s
    assert age_s is not None
    assert 0 < age_s <= DURATION_S_MAX, "since the host began, but not more than the protocol has room for"


def test_a_digest_is_told_if_it_is_whole_and_within_limits(slots: Slots) -> None:
    environs = slots.begin("e-1", 1)
    now = time.monotonic_ns()
    steps = (7, now, 7 ^ now, 0, *env.NO_SECTION)
    write(environs[0], *steps)
    assert completed(slots).digests == ()
    write(environs[0], *steps, *env.pack_digest(6, 1, 99))
    write(environs[1], *steps, *env.pack_digest(STEP_MAX + 1, 1, 99))
    write(environs[2], *steps, *env.pack_digest(6, RANKS_MAX + 1, 99))
    told = completed(slots)
    assert told.digests == (StateDigest(6, 1, 99), None, None)
    assert decode(encode(told), Observed) == told
    write(environs[0], *steps, 9, 9, 9)
    assert completed(slots).digests == told.digests, "one that is being written is as it was before"


def test_a_node_of_too_many_workers_tells_no_digests() -> None:
    slots = Slots(DIGESTS_MAX + 1, pytest.fail)
    now = time.monotonic_ns()
    write(slots.begin("e-1", 1)[0], 7, now, 7 ^ now, 0, *env.NO_SECTION, *env.pack_digest(6, 1, 99))
    assert (completed(slots).steps[0], completed(slots).digests) == (7, ())
    slots.close()


def test_no_worker_takes_the_memory_of_others_away(slots: Slots) -> None:
    path, _, _ = slots.begin("e-1", 1)[0][env.PROGRESS].rpartition(":")
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.truncate(path, size)


@contextmanager
def no_files() -> Iterator[None]:
    """Allow files no bytes, as after `ulimit -f 0`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
def test_a_node_that_gets_no_memory_says_so_once_and_goes_on_without_steps() -> None:
    complaints: list[str] = []
    slots = Slots(2, complaints.append)
    with no_files():
        begun = [slots.begin("e-1", 1), slots.begin("e-1", 2)]
    assert begun == [[{}, {}], [{}, {}]]
    assert complaints == ["the steps of the workers cannot be known: no shared memory, File too large"]
    assert completed(slots, number=2) == an_observed(run="e-1", round=2, phase=Phase.RUNNING)
    work(slots.begin("e-1", 3)[0], 6)
    assert completed(slots, number=3).steps == (6, None)
    slots.close()


def test_slots_take_one_open_file_however_many_rounds_there_are(slots: Slots) -> None:
    before = open_files()
    for number in range(1, 4):
        slots.begin("e-1", number)
        assert open_files() <= before + 1
    slots.close()
    slots.close()
    assert open_files() <= before


def test_both_sides_know_the_same_highest_step() -> None:
    assert env.STEP_MAX == STEP_MAX


def section_of(slots: Slots) -> Section:
    """Return the section that is reported, of which there must be one."""
    section = completed(slots).section
    assert section is not None
    return section


def test_a_section_is_told_with_its_age_and_the_one_that_may_go_on_for_the_longest_counts(slots: Slots) -> None:
    environs = slots.begin("e-1", 1)
    now = time.monotonic_ns()
    words = [env.pack_section("eval", 60, now - 5 * 10**9), env.pack_section("save", 10.2, now), env.NO_SECTION]
    for environ, section in zip(environs, words, strict=True):
        write(environ, 7, now, 7 ^ now, 0, *section)
    told = section_of(slots)
    assert (told.name, told.limit_s, told.local_rank) == ("eval", 60.0, 0)
    assert 5.0 <= told.age_s < 5.0 + TIMEOUT_S
    write(environs[0], 7, now, 7 ^ now, 0, words[0][0] + 1, *words[0][1:])
    assert section_of(slots).name == "eval", "one that is being written is as it was before"
    write(environs[0], 7, now, 7 ^ now, 0, *env.NO_SECTION)
    told = section_of(slots)
    assert (told.name, told.limit_s, told.local_rank) == ("save", 11.0, 1)
    write(environs[1], 7, now, 7 ^ now, 0, *env.NO_SECTION)
    assert completed(slots).section is None


@pytest.mark.parametrize("words", [(1, 2, 3, 1 ^ 2 ^ 3), (2**64 - 1,) * 3 + (2**64 - 1,), (2**64 - 1, 0, 0, 2**64 - 1)])
def test_a_section_is_read_with_bounds_whatever_is_in_it(slots: Slots, words: tuple[int, ...]) -> None:
    environs = slots.begin("e-1", 1)
    write(environs[0], 7, 1, 7 ^ 1, 0, *words)
    told = completed(slots)
    assert decode(encode(told), Observed) == told
