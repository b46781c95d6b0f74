"""Starts and ends the guard, a child process that kills the workers if this nodeclient dies first.

A nodeclient that is killed by SIGKILL cannot end its workers, which would hold their GPUs. `guard_process` is the
guard's program. The guard has a session of its own and ignores the usual signals. A pipe tells it when the nodeclient
is gone, because the kernel closes the pipe however the nodeclient ends.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode, describe_exit
from coordinatord.runtime.own_python import isolated
from nodeclient.host.process_state import is_stopped
from nodeclient.host.syscalls import pidfd_open
from nodeclient.workers.guard_process import READY
from nodeclient.workers.process_tree import MARK_VARIABLE, await_ends, send

CLOSE_TIMEOUT_S = 5.0
"""The timeout of the guard's end. After a clean end it exits in milliseconds; the rest is for an overloaded host."""

READY_WITHIN_S = 30.0
"""The timeout of the guard's start, which takes 20 ms; the rest is for an overloaded host or file system."""

POLL_EVERY_S = 0.25
"""How often to poll whether a signal has stopped the guard, which no descriptor shows. A poll takes 20 microseconds."""

REPLACED_EVERY_S = 1.0
"""The shortest time between two starts of guards: one that always fails must not keep a CPU busy."""

OUTPUT_MAX = 500
"""The limit of the error text of a guard that cannot start, in bytes."""

_PROGRAM = """
try:
    from nodeclient.workers.guard_process import main
except Exception as error:
    print(f"{type(error).__name__}: {error}")
    sys.exit(1)
main()
"""
"""The source text of the guard; `isolated` imports `sys` before it."""

_GUARD = "the guard, which ends the workers should this process be killed"


class GuardError(OperationalError):
    """There is no guard, so no worker may start."""

    exit_code = ExitCode.OS_ERROR


class Guard:
    """The guard of the workers of one nodeclient, which carry its mark. It must be up before the first worker starts.

    Workers must not inherit the write end of its pipe, or the guard would never see the end of the pipe. `subprocess`
    closes it in them, with its default `close_fds=True`.
    """

    def __init__(self, mark: str, folder: Path) -> None:
        """Begin without a process. The guard also removes `folder`, the nodeclient's private directory."""
        self._mark = mark
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        """The write end of the guard's stdin, which must stay open while this process lives."""
        self._ready = False
        """Whether the guard has reported that it is up."""
        self._ready_by = 0.0
        """The deadline of the guard's start, by the monotonic clock."""

    @property
    def pid(self) -> int | None:
        """The guard's process id; None without a guard."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the guard if none lives. It is up once `await_ready` has returned. Raises `OSError`."""
        self._forget_if_ended()
        if self._process is not None:
            return
        self._ready, self._ready_by = False, time.monotonic() + READY_WITHIN_S
        # The guard must carry no mark: it would kill itself, or an outer nodeclient would.
        environ = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
        stdin, self._lifeline = os.pipe()
        try:
            # Written before the start, because this process may be killed at any later moment.
            os.write(self._lifeline, f"{self._mark}\n".encode() + os.fsencode(self._folder) + b"\n")
            self._process = subprocess.Popen(  # noqa: S603  # the command has nothing that a user entered
                isolated(_PROGRAM),
                bufsize=0,
                stdin=stdin,
                stdout=subprocess.PIPE,
                env=environ,
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            self._cut_lifeline()
            raise
        finally:
            os.close(stdin)

    def await_ready(self) -> None:
        """Wait until the guard is up, and start it if none lives. Call this before every start of workers.

        A guard that dies before it is up is replaced once. Raises `GuardError` if that one fails too, and `OSError` if
        no process can be started.
        """
        for _ in range(2):
            self.start()
            failure = self._await_start()
            if not failure:
                return
        raise GuardError(f"{_GUARD}, {failure}")

    async def await_ready_in_loop(self) -> None:
        """Do the same as `await_ready`; the event loop is blocked only if the first guard dies before it is up."""
        self.start()
        if not self._ready:
            assert self._process is not None  # noqa: S101 - it was just started
            ready_fd = _pipe(self._process.stdout).fileno()
            loop, ready = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(ready_fd, ready.set)
            try:
                with suppress(TimeoutError):  # `await_ready` raises the error
                    await asyncio.wait_for(ready.wait(), READY_WITHIN_S)
            finally:
                loop.remove_reader(ready_fd)
        self.await_ready()

    async def watch(self, warn: Callable[[str], None]) -> None:
        """Replace the guard whenever it ends or is stopped, until cancelled.

        `warn` gets a text each time, but not the same text again within `REPLACED_EVERY_S`.
        """
        said = ""
        while True:
            began_at = time.monotonic()
            try:
                self.start()
                assert self._process is not None  # noqa: S101 - it was just started
                text = f"{_GUARD}, {await _end_of(self._process)}: another one takes its place"
                self._forget_if_ended()
            except OSError as error:
                text = f"{_GUARD}, cannot be started or watched: {error.strerror}; another try follows"
            pause_s = began_at + REPLACED_EVERY_S - time.monotonic()
            if text != said or pause_s < 0:
                warn(text)
            said = text
            await asyncio.sleep(pause_s)

    def _await_start(self) -> str:
        """Wait until the guard is up; return why it is not, or an empty text if it is."""
        if self._ready or self._process is None:
            return ""
        pipe = _pipe(self._process.stdout)
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        if not poll.poll(max(0.0, self._ready_by - time.monotonic()) * 1000):
            return f"was not up within {READY_WITHIN_S:g} s"
        output = os.read(pipe.fileno(), OUTPUT_MAX)
        self._ready = output == READY
        if self._ready:
            pipe.close()
            return ""
        code = self._process.wait()
        self._forget(self._process)
        text = " ".join(output.decode(errors="replace").split())
        return f"does not start: {text or describe_exit(code)}"

    def close(self) -> None:
        """End the guard, if there is one. It kills the processes of workers that still live."""
        self._forget_if_ended()
        if self._process is None:
            return
        self._cut_lifeline()
        # Popen's own wait polls after 1, 2, 4 ... 32 ms, which doubled the time of a job's end.
        pidfd = pidfd_open(self._process.pid)
        still_kills = await_ends({pidfd}, time.monotonic() + CLOSE_TIMEOUT_S)
        os.close(pidfd)
        if still_kills:  # it goes on after the end of this process
            self._process.returncode = 0  # keeps Popen from warning that the process is still running
        else:
            self._process.wait()
        self._forget(self._process)

    def _forget_if_ended(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._forget(self._process)

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        self._cut_lifeline()
        _pipe(process.stdout).close()
        self._process = None

    def _cut_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


async def _end_of(process: subprocess.Popen[bytes]) -> str:
    """Wait until a guard ends, and kill one that a signal has stopped; return how it ended."""
    loop, ended, was_stopped = asyncio.get_running_loop(), asyncio.Event(), False
    pidfd = pidfd_open(process.pid)
    loop.add_reader(pidfd, ended.set)
    try:
        while not ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), POLL_EVERY_S)
            if is_stopped(process.pid):
                was_stopped = True
                send(pidfd, signal.SIGKILL)
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
    return "was stopped" if was_stopped else f"has ended ({describe_exit(process.wait())})"


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # noqa: S101  # it was started with pipes
    return stream
