"""Real programs as subprocesses: their output line by line, their end, and whether anything of them is left.

Knows nothing of coordinators and nodes: that is `cluster`.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Self, TypeVar

Result = TypeVar("Result")

TIMEOUT_S = 200.0
"""Bound on any wait: hundreds of times what it takes on an idle machine, for other machines are not idle."""

LOOK_AGAIN_S = 0.02
"""The least time between two looks at something that does not announce its changes, such as an HTTP API."""

CHEAP_S = 0.002
"""A look that takes less is at memory, and is repeated as soon as any program writes a line."""

PAUSE = 3
"""Any other, such as a request or a program, is followed by a pause of so many times as long, whatever programs write
meanwhile: the programs need the processor."""

PAUSE_MOST_S = 5.0
"""The longest pause: the machine may have stood still during the look."""

LINES_SHOWN = 200
"""The lines of an output's end that are shown: they show what went wrong."""

TOKEN_VARIABLE = "TESTED_PROGRAM_TOKEN"  # noqa: S105 - it marks processes and opens nothing
"""The variable that all descendants of a program inherit."""

BIN = Path(sys.executable).parent

BOUND = ("setpriv", "--pdeathsig", "KILL")
"""The prefix that ends a program with the tests, also if they are killed: it is in a session of its own, out of their
reach otherwise. It becomes the program, under the same process id. (Python code between fork and exec would make each
start slower, and is not safe beside the threads here.)"""

NO_HOME = "/dev/null/no-home"
"""A home in which nothing can be kept. A test that wants state names a place of its own for it, and no test touches the
home of the user."""

_output_changed = threading.Condition()
"""Notified at each line of output and each end of a program."""

_started: list[Program] = []
"""The programs of this test, and those of before that still run."""


def wait_until(what: str, look: Callable[[], Result | None], timeout_s: float = TIMEOUT_S) -> Result:
    """Call `look` until its result is true, and return that; fail after `timeout_s`, with `what` in the message."""
    looked_at = time.monotonic()
    deadline = looked_at + timeout_s
    while True:
        if found := look():
            return found
        now = time.monotonic()
        assert now < deadline, f"waited in vain for {what}"
        took_s = now - looked_at
        if took_s < CHEAP_S:
            with _output_changed:
                _output_changed.wait(LOOK_AGAIN_S)
        else:
            threading.Event().wait(min(max(LOOK_AGAIN_S, PAUSE * took_s), PAUSE_MOST_S))
        looked_at = time.monotonic()


USER_HOME = "COORDINATORD_TEST_USER_HOME"
"""The variable with the XDG_CONFIG_HOME of the user of a test's programs, which are then as they are by default."""


def as_by_default(home: Path) -> dict[str, str]:
    """Return the variables with which programs are as they are by default, for a user with this XDG_CONFIG_HOME."""
    return {"COORDINATORD_INSECURE": "", "XDG_CONFIG_HOME": str(home)}


def clean_environ(**extra: str) -> dict[str, str]:
    """Return this process's environment without variables of a launcher or a user, and with our programs.

    Coordinators serve everybody in it, unless `USER_HOME` is set. Nodes do not check the machine that runs the tests.
    """
    ours = re.compile(
        "NODECLIENT_|COORDINATORD_|PET_|TORCHELASTIC_|TORCH_ELASTIC_|MASTER_|SLURM_|JOB_COMPLETION_INDEX|LOGLEVEL|OMP_|"
        "NOTIFY_SOCKET|STATE_DIRECTORY"
    )
    environ = {name: value for name, value in os.environ.items() if not ours.match(name)}
    path = f"{BIN}:{environ.get('PATH', os.defpath)}"
    usual = {
        "NODECLIENT_NO_BUILTIN_CHECK": "1",
        "PATH": path,
        "XDG_STATE_HOME": NO_HOME,
        "XDG_CONFIG_HOME": NO_HOME,
        "TZ": "UTC",
    }
    home = os.environ.get(USER_HOME)
    access = {"COORDINATORD_INSECURE": "1"} if home is None else as_by_default(Path(home))
    return {**environ, **usual, **access, **extra}


class Program:
    """A program that runs, in a session of its own."""

    def __init__(self, *argv: str | Path, environ: Mapping[str, str] | None = None, **options: Any) -> None:
        """Start it; `options` are those of `subprocess.Popen`, such as a terminal for its stderr.

        In the main thread only: the kernel kills it when the *thread* that started it ends.
        """
        assert threading.current_thread() is threading.main_thread(), "it would end with this thread"
        self.command = " ".join(map(str, argv))
        self.token = secrets.token_hex(16)
        self.lines: list[str] = []
        """Its output and its errors, in the order in which they came."""
        self.process: subprocess.Popen[str] = subprocess.Popen(
            list(map(str, (*BOUND, *argv))),
            env={**(environ or clean_environ()), TOKEN_VARIABLE: self.token},
            text=True,
            errors="replace",
            start_new_session=True,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options},
        )
        self._reader = threading.Thread(target=self._read, args=[self.process.stdout], daemon=True)
        self._reader.start()
        _started.append(self)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def reading(self) -> bool:
        """Whether more of its output may come."""
        return self._reader.is_alive()

    @property
    def output(self) -> str:
        """Its output so far, or the end of that."""
        return "\n".join(self.lines[-LINES_SHOWN:])

    def await_line(self, pattern: str, timeout_s: float = TIMEOUT_S) -> re.Match[str]:
        """Wait for a line in which `pattern` is found; fail if it ends without one."""
        seen = 0

        def look() -> re.Match[str] | None:
            nonlocal seen
            ended = not self.reading
            while seen < len(self.lines):
                seen += 1
                if found := re.search(pattern, self.lines[seen - 1]):
                    return found
            assert not ended, f"{self.command} ended without {pattern!r}:\n{self.output}"
            return None

        return wait_until(f"{pattern!r} in the output of {self.command}", look, timeout_s)

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Wait for its end, and for all of its output; return its exit code as a shell has it."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.command} does not end:\n{self.output}") from None
        self._reader.join(timeout_s)
        return code if code >= 0 else 128 - code

    def signal(self, signum: signal.Signals) -> None:
        """Send it a signal; do nothing if it has ended."""
        self.process.send_signal(signum)

    def stop(self) -> int:
        """End it by SIGTERM, wait for it and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        """Kill it and all that it started, and close its pipes."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in carriers(self.token):
            kill_quietly(pid)
        self._reader.join(TIMEOUT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        """Return it, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def leftovers(self) -> list[int]:
        """Return the living processes that it started, or that those started, besides itself."""
        return [pid for pid in carriers(self.token) if pid != self.pid]

    def await_no_leftovers(self) -> None:
        """Wait until nothing that it started lives any more."""
        wait_until("the end of all that it started", lambda: not self.leftovers())

    def _read(self, stream: IO[str] | None) -> None:
        for line in stream or ():
            self.lines.append(line.rstrip("\n"))
            with _output_changed:
                _output_changed.notify_all()
        with _output_changed:
            _output_changed.notify_all()


def forget_ended() -> None:
    """Forget the programs whose output is read: a test begins, and they were of those before it."""
    _started[:] = [program for program in _started if program.reading]


def output_of_all() -> list[tuple[str, str]]:
    """Return the command and the output of each program of this test: they show why it failed."""
    return [(program.command, program.output) for program in _started]


def run(
    *argv: str | Path, environ: Mapping[str, str] | None = None, words: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with its output and its errors apart; `words` are its input."""
    return subprocess.run(
        list(map(str, argv)),
        env=environ or clean_environ(),
        capture_output=True,
        text=True,
        input=words,
        timeout=TIMEOUT_S,
        check=False,
    )


def open_files() -> int:
    """Return how many descriptors this process has; threads that end may still be about to close some."""
    return len(list(Path("/proc/self/fd").iterdir()))


def carriers(token: str) -> list[int]:
    """Return the living processes that carry a token; zombies have no environment any more."""
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if wanted in environ.split(b"\0"):
                pids.append(int(entry.name))
    return pids


def zombies(parent: int) -> list[int]:
    """Return the children of a process that have ended and that it has not reaped."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, its_parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if state == "Z" and int(its_parent) == parent:
                pids.append(int(entry.name))
    return pids


def await_end(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(TIMEOUT_S * 1000), f"process {pid} does not end"
    finally:
        os.close(pidfd)


def kill_quietly(pid: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return
