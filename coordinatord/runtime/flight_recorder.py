"""Records the last events of a pure machine, and its state before them, so that a bug can be replayed.

A machine decides, and does no input or output (`core.machine`, and the agent of nodeclient). Its next state depends
only on its state, an event and the time. An event together with its time is called a *stimulus*.

The state is copied, a *snapshot*, once every few thousand stimuli, and the stimuli since then are kept. A crash file
has the snapshot and these stimuli, so it leads to the same error in any process of the same release. A state that is
too large to be copied is left out.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from coordinatord.protocol.errors import InternalError, OperationalError, operational
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.text import clip
from coordinatord.runtime import __version__
from coordinatord.runtime.object_graph import GraphError, attributes, dump, load, snapshot

STIMULI_MIN = 4_000
"""The fewest stimuli between two snapshots of the state. With a few nodes a snapshot takes 1 ms, and 4,000 stimuli take
80 ms and 2 MB of memory."""

STIMULI_PER_OBJECT = 5
"""How many stimuli between two snapshots a large state has for each of its objects. A snapshot takes some 6 us an
object, so it adds about 1 us to each stimulus. One that was aborted at `OBJECTS_MAX` is retried after as many."""

STIMULI_MAX_WITH_STATE = 40_000
"""The most stimuli between two snapshots: 20 MB in memory, and 30 MB in a crash file that takes 3 s of a CPU to write.
Python's garbage collector scans all of them now and then: 50,000 delayed the nodes by 70 ms."""

OBJECTS_MAX = 19_000
"""The limit of a snapshot, in objects: some 2,300 nodes, or 300 ended jobs. A larger one would delay the nodes by more
than 0.1 s. Without a snapshot, a crash file has only the last stimuli, and can be read, not replayed."""

OBJECTS_PER_NODE = 8
"""The least number of objects of a node, to skip snapshots that would be aborted after 0.1 s."""

STIMULI_MAX = 10_000
"""The most stimuli that are kept without a snapshot: 2 MB."""

BYTES_MAX = 32 << 20
"""The most bytes of messages in the kept stimuli. The usual 40,000 have 5 MB. A hostile node may send the largest
message 25 times a second, and each takes several times its size in memory."""

FILES_RETAINED = 3
"""How many crash files are kept, the newest ones. A bug may recur after each restart, and each file may have 30 MB."""

FORMAT = 1
"""The version of the file's format."""


class Subject(Struct, frozen=True):
    """The properties of a kind of machine that the recorder needs."""

    program: str
    """The name of its program."""
    packages: tuple[str, ...]
    """The packages with the classes of its state and its events."""
    code: tuple[str, ...]
    """Attributes of the machine that are left out, since they hold code: its constructor makes them."""
    nodes: Callable[[Any], int] = lambda _: 1
    """Returns how many nodes a machine knows, to estimate the size of its state."""


class FlightRecorder:
    """Records one machine: call `record` with each event before the machine handles it."""

    def __init__(self, subject: Subject, machine: object) -> None:
        self._subject = subject
        self._machine = machine
        self._before: Any = None
        """A snapshot of the machine before the first kept stimulus; None if its state is too large."""
        self._limit = 0
        """The number of kept stimuli at which room has to be made, mostly by a snapshot; 0 before the first one."""
        self._until_next_try = 0
        """The number of stimuli until an aborted snapshot is retried."""
        self._stimuli: deque[tuple[float, object, int]] = deque()
        """The kept stimuli, each a time and an event, and the sizes of the events' messages, oldest first."""
        self._bytes = 0
        """The sum of the sizes."""

    def record(self, event: object, now: float, size: int = 0) -> None:
        """Record an event before the machine handles it; `size` is the size of its message in bytes, if any.

        If a snapshot is due, take it, and drop the stimuli before it.
        """
        if len(self._stimuli) >= self._limit or self._bytes >= BYTES_MAX:
            self._make_room()
        self._stimuli.append((now, event, size))
        self._bytes += size

    def _make_room(self) -> None:
        """Take a snapshot, and drop the stimuli before it; if the state is too large, drop only the oldest."""
        is_large = self._subject.nodes(self._machine) * OBJECTS_PER_NODE > OBJECTS_MAX
        had_no_snapshot = self._before is None and bool(self._stimuli)  # so the last try was aborted or skipped
        if had_no_snapshot and (is_large or self._until_next_try > 0):
            self._until_next_try -= 1  # once the limit is reached, each stimulus comes here
            self._drop_oldest()
            return
        self._before, objects = None, 0
        if not is_large:
            self._before, objects = snapshot(self._machine, without=self._subject.code, most=OBJECTS_MAX)
        between_snapshots = max(STIMULI_MIN, STIMULI_PER_OBJECT * objects)
        if self._before is not None:
            self._limit = min(between_snapshots, STIMULI_MAX_WITH_STATE)
            self._stimuli.clear()
            self._bytes = 0
            return
        self._limit, self._until_next_try = STIMULI_MAX, between_snapshots
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while len(self._stimuli) >= self._limit or self._bytes >= BYTES_MAX:
            self._bytes -= self._stimuli.popleft()[2]

    def explain(self, error: Exception, folder: Path | None) -> Exception:
        """Return any error of the machine as a bug, with notes on the stimulus that led to it.

        Write the snapshot and the stimuli since to a new crash file in `folder`. This never raises, so that it does not
        hide the error.
        """
        now, event, _ = self._stimuli[-1]
        # An operational error is a bug here, too: a machine does no input or output.
        bug = error if operational(error) is None else self._bug(error, event)
        bug.add_note(f"The stimulus, at {now:.6f} s of the event loop's clock: {clip(repr(event), 500)}.")
        if folder is None:
            return bug
        try:
            path = self._write(error, folder)
        except (OSError, GraphError) as write_error:
            bug.add_note(f"The crash file could not be written to {folder}: {write_error}.")
        else:
            bug.add_note(self._replay_advice(path))
        return bug

    def _bug(self, error: Exception, event: object) -> InternalError:
        bug = InternalError(_named(error), where=self._subject.program, state=None, stimulus=event)
        bug.__cause__ = error
        return bug

    def _replay_advice(self, path: Path) -> str:
        stimuli = f"the last {len(self._stimuli)} stimuli"
        if self._before is None:
            return f"Read {stimuli} in {path}: the state was too large to be copied, so they cannot be run again."
        return f"Run {stimuli} again: {self._subject.program} replay --crash {path}"

    def _write(self, error: Exception, folder: Path) -> Path:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"crash-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}.json"
        before = None if self._before is None else list(attributes(self._before))
        content = {
            "format": FORMAT,
            "program": self._subject.program,
            "release": __version__,
            "error": _named(error),
            **dump((before, [(now, event) for now, event, _ in self._stimuli])),
        }
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(json.dumps(content))  # `json.dump` takes four times as long
        for old in sorted(folder.glob("crash-*.json"))[:-FILES_RETAINED]:
            old.unlink(missing_ok=True)
        return path


class CrashFileError(OperationalError):
    """A crash file cannot be replayed."""

    exit_code = ExitCode.NO_INPUT


class Recording(Struct, frozen=True):
    """The content of a crash file."""

    stimuli: tuple[tuple[float, Any], ...]
    """The times and events that the machine handled after the snapshot."""
    error: str
    release: str
    """The release that wrote the file."""


def read(path: Path, subject: Subject, machine: object) -> Recording:
    """Read a crash file, and load its state into `machine`, a new one. Raises `CrashFileError`."""
    try:
        plain = json.loads(path.read_text())
        if (plain["format"], plain["program"]) != (FORMAT, subject.program):
            raise CrashFileError(f"{path} is no crash file of this {subject.program}")
        state, stimuli = load(plain, subject.packages)
        if state is None:
            raise CrashFileError(f"{path} has no state, since that was too large to be copied: it can only be read")
        for name, value in state:
            setattr(machine, name, value)
        return Recording(tuple(stimuli), str(plain["error"]), str(plain["release"]))
    except OSError as error:
        raise CrashFileError(f"{path} cannot be read: {error.strerror}") from error
    except (AttributeError, GraphError, KeyError, TypeError, ValueError) as error:
        raise CrashFileError(f"{path} is no crash file, or is damaged: {error}") from error


def replay(path: Path, subject: Subject, machine: Any) -> ExitCode:
    """Replay a crash file with a new `machine`, print each stimulus, and whether the same error occurs.

    Return the exit code. Raises `CrashFileError`.
    """
    recording = read(path, subject, machine)
    if recording.release != __version__:
        _print(f"the file is of release {recording.release}, this is {__version__}: the end may differ")
    end = "without an error"
    for now, event in recording.stimuli:
        _print(f"{now:.6f} s  {clip(repr(event), 500)}")
        try:
            machine.handle(event, now)
        except Exception as error:  # noqa: BLE001 - the recorded error may be of any class
            end = _named(error)
            _print("".join(traceback.format_exception(error)).rstrip())
            break
    if end == recording.error:
        _print(f"it ended as recorded: {end}")
        return ExitCode.OK
    _print(f"it did not end as recorded: {end}; recorded: {recording.error}")
    return ExitCode.DATA_ERROR


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
