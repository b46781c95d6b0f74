"""What led to a bug of a machine is kept in a file, and runs again in another process to the same end."""

import json
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Tick
from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.errors import InternalError, operational
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.kept_state import Keeper, KeptSource
from coordinatord.protocol.messages import FRAME_BYTES_MAX
from coordinatord.protocol.schema import SchemaError
from coordinatord.runtime import flight_recorder
from coordinatord.runtime.flight_recorder import (
    BYTES_MAX,
    FILES_RETAINED,
    OBJECTS_MAX,
    STIMULI_MIN,
    CrashFileError,
    FlightRecorder,
    read,
    replay,
)
from coordinatord.runtime.object_graph import GraphError, dump, load, snapshot
from coordinatord.server.driver import RECORDED
from tests.support.builders import a_coordinator

BUG = ZeroDivisionError("so it is")

Crash = Callable[[int], tuple[Path, Exception]]


@pytest.fixture
def crash(tmp_path: Path) -> Crash:
    """Return a function that makes a coordinator fail at its n-th stimulus, and returns the file and the error."""

    def fail_after(stimuli: int) -> tuple[Path, Exception]:
        machine = a_coordinator()
        recorder = FlightRecorder(RECORDED, machine)
        for now in range(stimuli):
            recorder.record(Tick(), float(now))
            machine.handle(Tick(), float(now))
        recorder.record(Tick(), float(stimuli))
        error = ZeroDivisionError("so it is")
        recorder.explain(error, tmp_path / "crashes")
        return max((tmp_path / "crashes").iterdir()), error

    return fail_after


def recorded(stimuli: int) -> FlightRecorder:
    """Return a recorder that has met so many stimuli."""
    recorder = FlightRecorder(RECORDED, a_coordinator())
    for now in range(stimuli):
        recorder.record(Tick(), float(now))
    return recorder


def stumbling(monkeypatch: pytest.MonkeyPatch, at: float) -> None:
    """Give the coordinator a bug that it meets at a time."""
    handle = Coordinator.handle

    def handle_or_fail(machine: Coordinator, event: Any, now: float) -> object:
        if now == at:
            raise BUG
        return handle(machine, event, now)

    monkeypatch.setattr(Coordinator, "handle", handle_or_fail)


def test_it_ends_as_it_did(crash: Crash, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    path, _ = crash(3)
    stumbling(monkeypatch, 3.0)
    assert replay(path, RECORDED, Coordinator(Policy(), "")) == ExitCode.OK
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if "Tick" in line] == [f"{now}.000000 s  Tick()" for now in range(4)]
    assert lines[-1] == "it ended as recorded: ZeroDivisionError: so it is"


def test_where_the_bug_is_mended_that_is_said(crash: Crash, capfd: pytest.CaptureFixture[str]) -> None:
    path, _ = crash(3)
    assert replay(path, RECORDED, Coordinator(Policy(), "")) == ExitCode.DATA_ERROR
    assert "it did not end as recorded: without an error" in capfd.readouterr().out


def test_the_error_says_what_it_was_about_and_how_to_run_it_again(crash: Crash) -> None:
    path, error = crash(0)
    about, again = error.__notes__
    assert "Tick()" in about
    assert again == f"Run the last 1 stimuli again: coordinatord replay --crash {path}"


@pytest.mark.parametrize("error", [SchemaError("no goal"), OSError(5, "broken")])
def test_what_leaves_a_machine_is_a_bug_whatever_it_is(error: Exception) -> None:
    bug = recorded(1).explain(error, None)
    assert isinstance(bug, InternalError)
    assert bug.__cause__ is error
    assert "Tick()" in bug.__notes__[0]
    assert operational(bug) is None


def test_only_the_last_stimuli_are_kept_with_the_state_before_them(
    crash: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = crash(STIMULI_MIN + 5)
    stumbling(monkeypatch, STIMULI_MIN + 5.0)
    assert len(read(path, RECORDED, a_coordinator()).stimuli) == 6
    assert replay(path, RECORDED, Coordinator(Policy(), "")) == ExitCode.OK


def test_only_its_owner_may_read_it_and_only_the_last_few_are_kept(crash: Crash, tmp_path: Path) -> None:
    path, _ = crash(0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for year in range(FILES_RETAINED + 1):
        path.with_name(f"crash-200{year}.json").touch()
    path.unlink()
    crash(0)
    assert len(list((tmp_path / "crashes").iterdir())) == FILES_RETAINED


def test_a_state_that_is_too_large_is_not_copied_and_the_last_stimuli_can_be_read(
    crash: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder, "OBJECTS_MAX", 3)
    path, error = crash(2)
    assert error.__notes__[-1].startswith(f"Read the last 3 stimuli in {path}: the state was too large")
    assert len(json.loads(path.read_text())["objects"]) > 3
    with pytest.raises(CrashFileError, match="too large to be copied: it can only be read"):
        read(path, RECORDED, a_coordinator())


def test_of_a_large_state_the_last_stimuli_are_kept_and_no_copy_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "STIMULI_MAX", 3)
    subject = replace(RECORDED, nodes=lambda _: flight_recorder.OBJECTS_MAX)
    recorder = FlightRecorder(subject, a_coordinator())
    monkeypatch.setattr(flight_recorder, "snapshot", None)
    for now in range(7):
        recorder.record(Tick(), float(now))
    assert [at for at, *_ in recorder._stimuli] == [4.0, 5.0, 6.0]


def test_a_copy_that_was_given_up_is_tried_again_as_rarely_as_others_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"OBJECTS_MAX": 3, "STIMULI_MIN": 2, "STIMULI_MAX": 5}.items():
        monkeypatch.setattr(flight_recorder, name, value)
    given_up: list[int] = []
    recorder = FlightRecorder(replace(RECORDED, nodes=lambda _: 0), a_coordinator())

    def counted(root: Any, **named: Any) -> tuple[Any, int]:
        given_up.append(now)
        return snapshot(root, **named)

    monkeypatch.setattr(flight_recorder, "snapshot", counted)
    for now in range(100):
        recorder.record(Tick(), float(now))
        assert len(recorder._stimuli) == min(now + 1, 5), "the last ones are kept, whether a copy is tried or not"
    first, second, *_ = given_up
    assert second - first >= 4 * flight_recorder.STIMULI_PER_OBJECT, "a copy of four objects is given up"


def test_the_stimuli_after_a_copy_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "STIMULI_MIN", 2)
    monkeypatch.setattr(flight_recorder, "STIMULI_MAX_WITH_STATE", 7)
    assert len(recorded(8)._stimuli) == 1


@pytest.mark.parametrize("nodes", [0, OBJECTS_MAX])
def test_what_large_messages_hold_is_bounded_in_bytes(nodes: int) -> None:
    recorder = FlightRecorder(replace(RECORDED, nodes=lambda _: nodes), a_coordinator())
    for now in range(4 * BYTES_MAX // FRAME_BYTES_MAX):
        recorder.record(Tick(), float(now), FRAME_BYTES_MAX)
        assert 1 <= len(recorder._stimuli) <= BYTES_MAX // FRAME_BYTES_MAX
    assert recorder._bytes == FRAME_BYTES_MAX * len(recorder._stimuli)


def test_a_bug_is_reported_though_its_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    recorded(1).explain(BUG, tmp_path / "file" / "below")
    assert "could not be written" in BUG.__notes__[-1]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1, "program": "coordinatord", "root": {"object": 7}, "objects": []}']
)
def test_what_is_no_crash_file_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "crash.json"
    path.write_text(text)
    with pytest.raises(CrashFileError) as caught:
        replay(path, RECORDED, a_coordinator())
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CrashFileError, match="cannot be read: No such file"):
        replay(tmp_path / "none", RECORDED, a_coordinator())


@pytest.mark.parametrize("name", ["subprocess:Popen", "coordinatord.cli:main", "coordinatord.core.machine:math"])
def test_a_file_can_name_no_class_but_the_machine_s_own(name: str) -> None:
    plain = {"root": {"object": 0}, "objects": [["instance", name, {}]]}
    with pytest.raises(GraphError):
        load(plain, RECORDED.packages)


def test_what_is_shared_is_shared_again_and_code_is_not_written_down() -> None:
    inner: dict[str, Any] = {"infinite": float("inf"), "bytes": b"\0", "set": {1}, "tuple": (1, 2.5, None)}
    inner["itself"] = inner
    again = load(json.loads(json.dumps(dump([inner, inner]))), ())
    assert again[0] is again[1] is again[0]["itself"]
    assert {name: value for name, value in again[0].items() if name != "itself"} == {
        name: value for name, value in inner.items() if name != "itself"
    }
    with pytest.raises(GraphError, match="is code"):
        dump([print])


def test_a_counter_counts_on_as_a_copy_and_when_it_was_written_down() -> None:
    class Root:
        def __init__(self) -> None:
            self.counts = Counter({8: 1})

    root = Root()
    copy = snapshot(root, most=10)[0].counts
    for counts in (copy, load(json.loads(json.dumps(dump(root.counts))), ())):
        counts[8] += 1
        counts[16] += 1
        assert counts == {8: 2, 16: 1}


def test_secrets_are_not_written_down() -> None:
    keeper = Keeper(port=9_000, key="5e" * 16, limit_bytes=1)
    source = KeptSource("a", "10.0.0.1", 9_000, "5e" * 16, ())
    plain = dump([keeper, source])
    assert "5e5e" not in json.dumps(plain)
    again = load(plain, ["coordinatord.protocol"])
    assert again == [replace(keeper, key="0" * 32), replace(source, key="0" * 32)]


def test_a_copy_does_not_change_with_the_original() -> None:
    machine = a_coordinator()
    copy, objects = snapshot(machine, without=RECORDED.code, most=1_000)
    assert 3 < objects < 1_000
    machine.cluster.jobs["job"] = None  # type: ignore[assignment]
    assert copy.cluster.jobs == {}
    assert snapshot(machine, without=RECORDED.code, most=3)[0] is None
