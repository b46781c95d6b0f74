"""`workerlib.step`: what a worker writes into its slot, what happens where there is none, and what it costs."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import workerlib
from tests.support.programs import TIMEOUT_S
from tests.workerlib.test_init import SOLO
from workerlib import progress
from workerlib.contract.env import (
    DIGEST_AT,
    DIGEST_WORDS,
    FIRST_STEP_AT,
    NO_SECTION,
    PROGRESS,
    SECTION_AT,
    SLOT_BYTES,
    SLOTS_NAME,
    STEP_MAX,
    STEPS_TO_COME,
    TRAINED_AT,
    pack_section,
    unpack_digest,
    unpack_section,
)

SLOTS = 3


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each test the first to report a step."""
    monkeypatch.setattr(progress, "_slot", None)
    monkeypatch.delenv(PROGRESS, raising=False)


@pytest.fixture
def memory() -> Iterator[int]:
    """Yield slots as a node makes them."""
    file = os.memfd_create(SLOTS_NAME, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(file, SLOTS * SLOT_BYTES)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    yield file
    os.close(file)


@pytest.fixture
def slot(memory: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Give this process the first slot; return the file."""
    monkeypatch.setenv(PROGRESS, place_of(memory))
    return memory


def place_of(file: int, slot: int = 0) -> str:
    """Return what names a slot of this process's file."""
    return f"/proc/{os.getpid()}/fd/{file}:{slot * SLOT_BYTES}"


def words_of(file: int, slot: int = 0) -> list[int]:
    """Return what is in a slot."""
    return memoryview(os.pread(file, SLOT_BYTES, slot * SLOT_BYTES)).cast("Q").tolist()


def test_a_step_is_left_in_the_slot_with_its_time(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROGRESS, place_of(memory, 1))
    before = time.monotonic_ns()
    workerlib.step(12)
    after = time.monotonic_ns()
    step, at, check, *rest = words_of(memory, 1)
    assert (step, check) == (12, 12 ^ at)
    assert before <= at <= after
    assert [word for word in rest if word] == [at] == [words_of(memory, 1)[FIRST_STEP_AT]]
    workerlib.step(12)
    assert words_of(memory, 1)[FIRST_STEP_AT] == at < words_of(memory, 1)[1]
    assert not any(words_of(memory, 0) + words_of(memory, 2)), "the slots of others are left alone"


def test_that_steps_are_to_come_is_left_in_the_slot_before_the_first(slot: int) -> None:
    progress.announce()
    step, at, check, *_ = words_of(slot)
    assert (step, check) == (STEPS_TO_COME, STEPS_TO_COME ^ at)
    workerlib.step(3)
    assert words_of(slot)[0] == 3
    progress.announce()
    assert words_of(slot)[0] == 3, "what is known already says more"


def test_that_training_is_over_is_left_in_the_slot_beside_the_last_step(slot: int) -> None:
    workerlib.step(3)
    before = words_of(slot)
    assert before[TRAINED_AT] == 0
    progress.end_training()
    assert words_of(slot) == [*before[:TRAINED_AT], 1, *before[TRAINED_AT + 1 :]]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [True, False])
def test_a_script_without_steps_announces_none_and_without_torch_it_is_told(memory: int, steps: bool) -> None:
    program = f"import sys; sys.path[:0] = ['.']; import workerlib; workerlib.init(steps={steps})"
    environ = {**os.environ, **SOLO.to_environ(), PROGRESS: place_of(memory), "PYTHONPATH": ""}
    # There are no installed packages without site, and so no torch: `init` goes no further.
    ended = subprocess.run(
        [sys.executable, "-S", "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    assert "needs PyTorch" in ended.stderr.splitlines()[-1]
    assert "pip install torch" in ended.stderr.splitlines()[-1]
    assert any(words_of(memory)) is steps


class Whole:
    """A number of some library, such as a tensor of one."""

    def __int__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return other == 7

    __hash__ = None  # type: ignore[assignment]


class Broken:
    """A number that cannot be had, such as a tensor on a GPU that has gone."""

    def __int__(self) -> int:
        raise RuntimeError

    __repr__ = __str__ = __int__  # type: ignore[assignment]


def test_the_last_whole_number_of_whatever_type_counts(slot: int) -> None:
    numbers: list[Any] = [1, STEP_MAX, 0, Whole(), 3.0, True, 5]
    for number, step in zip(numbers, (1, STEP_MAX, 0, 7, 3, 1, 5), strict=True):
        workerlib.step(number)
        assert words_of(slot)[0] == step


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (-1, "int: -1"),
        (STEP_MAX + 1, f"int: {STEP_MAX + 1}"),
        (1.5, "float: 1.5"),
        (float("nan"), "float: nan"),
        ("3", "str"),
        (None, "NoneType"),
        (Broken(), "Broken"),
    ],
)
def test_what_is_no_step_leaves_no_word_and_is_said_once(
    number: int, text: str, slot: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "_has_warned", False)
    workerlib.step(4)
    before = words_of(slot)
    workerlib.step(number)
    workerlib.step(number)
    assert words_of(slot) == before
    said = f"a step must be a whole number from 0 to 2**53 - 1, not one of type {text}; this one is not reported"
    assert caplog.messages == [said]


def test_a_process_without_a_slot_says_its_steps_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    workerlib.step(1)
    workerlib.step(2)
    assert not caplog.records


def bad_places(folder: Path, memory: int) -> dict[str, str]:
    """Return places of slots that are none."""
    file = folder / "file"
    file.write_bytes(bytes(SLOT_BYTES))
    empty = folder / "empty"
    empty.touch()
    link = place_of(memory).rpartition(":")[0]
    return {
        "a file that is not there": f"{folder}/no:0",
        "a file that may shrink": f"{file}:0",
        "a file of no size": f"{empty}:0",
        "a folder": f"{folder}:0",
        "the descriptor of a process that has ended": f"/proc/{2**22}/fd/3:0",
        "beyond the end": f"{link}:{SLOTS * SLOT_BYTES}",
        "before the beginning": f"{link}:-{SLOT_BYTES}",
        "not at the beginning of a slot": f"{link}:8",
        "no number": f"{link}:x",
        "no place in the file": link,
        "nothing": "",
    }


def test_a_worker_goes_on_without_a_slot_that_it_cannot_use_and_says_so_once(
    tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for what, place in bad_places(tmp_path, memory).items():
        monkeypatch.setattr(progress, "_slot", None)
        monkeypatch.setenv(PROGRESS, place)
        caplog.clear()
        workerlib.step(1)
        workerlib.step(2)
        assert len(caplog.records) == 1, what
        assert caplog.messages[0].startswith("the steps of this worker are not reported: "), what
    assert not any(words_of(memory))


def test_a_slot_that_may_only_be_read_is_none(slot: int, caplog: pytest.LogCaptureFixture) -> None:
    fcntl.fcntl(slot, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    workerlib.step(1)
    assert "not permitted" in caplog.text


def test_a_slot_stays_usable_when_its_node_has_gone(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.dup(memory)
    monkeypatch.setenv(PROGRESS, place_of(other))
    workerlib.step(1)
    os.close(other)
    workerlib.step(2)
    assert words_of(memory)[0] == 2


@pytest.mark.parametrize("leads_to", ["nothing", "something else"])
def test_a_worker_that_stays_uses_the_descriptor_that_it_was_sent(
    memory: int, leads_to: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "file").open("w") as file:  # in another namespace, the number of nodeclient is another process's
        descriptor = "none" if leads_to == "nothing" else file.fileno()
        monkeypatch.setenv(PROGRESS, f"/proc/{os.getpid()}/fd/{descriptor}:{SLOT_BYTES}")
        progress.begin_round(os.dup(memory))
        workerlib.step(4)
        progress.begin_round()
    assert words_of(memory, 1)[0] == 4


FORBID_AND_STEP = """
import ctypes, os, resource, sys, workerlib
class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("what", ctypes.c_uint)]
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(Instruction))]
RETURN, KILL, NO_NEW_PRIVILEGES, SECCOMP, BY_FILTER = 6, 0, 38, 22, 2
kill_all = Program(1, ctypes.pointer(Instruction(RETURN, 0, 0, KILL)))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
steps = workerlib.step if len(sys.argv) == 1 else lambda number: os.getppid()
workerlib.step(0)
prctl = ctypes.CDLL(None).prctl
if prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or prctl(SECCOMP, BY_FILTER, ctypes.byref(kill_all), 0, 0):
    sys.exit(77)
for number in range(1, 10_001):
    steps(number)
workerlib.step(20_000)
os.getppid()
"""
"""Reports steps while every system call would be its end; with an argument, it makes one in place of each."""


@pytest.mark.slow
def test_a_step_is_no_system_call(memory: int) -> None:
    ends = []
    for arguments in [], ["call"]:
        environ = {**os.environ, PROGRESS: place_of(memory)}
        done = subprocess.run(
            [sys.executable, "-c", FORBID_AND_STEP, *arguments], env=environ, timeout=TIMEOUT_S, check=False
        )
        if done.returncode == 77:
            pytest.skip("system calls cannot be forbidden here (seccomp)")
        ends.append((done.returncode, words_of(memory)[0]))
    assert ends == [(-signal.SIGSYS, 20_000), (-signal.SIGSYS, 0)]


def section_in(file: int) -> tuple[str, int, int] | None:
    """Return the section that is in a slot."""
    return unpack_section(words_of(file)[SECTION_AT:DIGEST_AT])


def test_a_section_is_in_the_slot_while_it_lasts(slot: int) -> None:
    before = time.monotonic_ns()
    with workerlib.section("eval", limit=600):
        found = section_in(slot)
        assert found is not None
        assert found[:2] == ("eval", 600)
        assert before // 1_000_000 * 1_000_000 <= found[2] <= time.monotonic_ns()
        with workerlib.section("save to the other disk", limit=0.2):
            inner = section_in(slot)
            assert inner is not None
            assert inner[:2] == ("save to the othe", 1)
        assert section_in(slot) == found
        workerlib.step(8)
    assert words_of(slot)[0] == 8
    assert words_of(slot)[SECTION_AT:DIGEST_AT] == list(NO_SECTION)


def test_a_digest_is_in_the_slot_beside_a_section(slot: int) -> None:
    with workerlib.section("eval", limit=600):
        progress.report_digest(0, 3, 2**32 - 1)
        assert section_in(slot) is not None
    words = words_of(slot)[DIGEST_AT : DIGEST_AT + DIGEST_WORDS]
    assert unpack_digest(words) == (0, 3, 2**32 - 1)
    with pytest.raises(ValueError, match="being written"):
        unpack_digest([words[0] + 1, *words[1:]])


def test_a_section_without_a_limit_ends_with_an_error_too(slot: int) -> None:
    with pytest.raises(KeyError), workerlib.section("eval", limit=float("inf")):
        raise KeyError
    assert section_in(slot) is None


@pytest.mark.parametrize(("name", "limit"), [("", 9), ("a\nb", 9), ("eval", 0), ("eval", -1), ("eval", float("nan"))])
def test_a_section_without_a_name_or_a_limit_is_an_error(name: str, limit: float) -> None:
    with pytest.raises(ValueError, match=r"expected a name, and a limit in seconds above 0"):
        workerlib.section(name, limit).__enter__()


@pytest.mark.parametrize(
    ("name", "shown"), [("eval", "eval"), ("ä" * 9, "ä" * 8), ("x" + "ä" * 9, "x" + "ä" * 7), ("e" * 16, "e" * 16)]
)
def test_the_name_of_a_section_is_cut_at_a_letter(name: str, shown: str) -> None:
    assert unpack_section(pack_section(name, 1e9, 10**18)) == (shown, 86_400, 10**18)


def test_words_that_do_not_belong_together_are_no_section() -> None:
    first, second, third, check = pack_section("eval", 9, 10**9)
    with pytest.raises(ValueError, match="being written"):
        unpack_section((first, second, third, check ^ 1))
    assert unpack_section((0, second, third, check)) is None


def test_a_section_before_the_first_step_is_no_step(slot: int) -> None:
    """It opens the slot, whose words for the step are still zeros."""
    with workerlib.section("tokenizing", 60):
        assert progress.last_step() == -1
    progress.announce()
    assert words_of(slot)[0] == STEPS_TO_COME
    assert progress.last_step() == -1
