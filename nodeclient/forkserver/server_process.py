"""The node's side of a parent interpreter: its start, its progress, its forks and its end.

A parent interpreter imports the modules of `--preload`, and forks workers, which then need not import them. Forks for
the next round are made ahead, and wait until they are told which worker they are. `starter` decides when to run a
parent. `hook` has the code that runs inside it.

A worker must be a child of this process, which gets its exit code then. So the parent interpreter does not fork it
itself: an *intermediate process* does, and ends at once. The kernel then makes the orphaned fork a child of this
process, which is a subreaper (`workers.orphans`).
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import workerlib.contract.recorders
import workerlib.gloo
import workerlib.responder
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import describe_exit
from coordinatord.protocol.messages import ColdCause
from nodeclient.workers.process_tree import MARK_VARIABLE, UnkillableError, kill_marked
from nodeclient.workers.python_command import ColdError
from nodeclient.workers.spawn import WorkerCommand, die_with_parent, pidfd_of_child

FORKED = b"forked"
"""The parent interpreter's line that the intermediate process of a fork has ended."""

ANSWER_BYTES_MAX = 1_024
"""How many bytes of a fork's answers are read at a time; one is a number or a short sentence."""

HOOK = Path(__file__).parent / "hook"
"""The directory with our `sitecustomize`."""

SETTINGS_VARIABLE = "COORDINATORD_PRELOAD"
"""The same name as in `hook/preload_parent.py`."""

CHECKS_BY_NVML = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "TRITON_NVML_BASED_CUDA_CHECK": "1"}
"""Variables that make torch and Triton find GPUs without initialising CUDA. Some modules look for GPUs at their import,
and once CUDA was initialised, no fork could use a GPU. Workers have these variables only if the user has set them."""

IMPORT_WITHIN_S = 300.0
"""The timeout of all imports. They take seconds, or minutes on a network file system under load."""

FORK_WITHIN_S = 2.0
"""The timeout of a fork, which takes 10 ms with torch. The node blocks meanwhile, and has a lease of 5 s."""

ROOM_BYTES = 16_384
"""The padding of the parent's environment: `preload_worker` overwrites the one that /proc shows with a longer one."""

END_WITHIN_S = 5.0
"""How long the interpreter may take to die of SIGKILL. It takes longer only if it hangs in the kernel, such as on a
dead network file system."""

AHEAD_AFTER_S = 0.5
"""How long after the start of the last worker the next round's forks are made: with torch a fork takes 20 ms of CPU
time, which the new workers need."""

LINE_BYTES_MAX = 65_536
"""How many bytes of the parent's messages are read at a time."""


class ForkServerError(OperationalError):
    """The parent interpreter has failed; the text says why."""


class WaitingFork:
    """A fork that waits to become a worker; closing this object ends it.

    It was requested over `link`, the connection to the parent interpreter. Its process id and any error arrive over a
    socket of its own, so they can be read later.
    """

    def __init__(self, link: socket.socket) -> None:
        """Request a fork. Raises `OSError`."""
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(link, [b"."], [theirs.fileno()])
        except OSError:
            self.close()
            raise

    def become(self, command: WorkerCommand, streams: Sequence[int], until: float) -> int:
        """Turn the fork into a worker; return its process id, which is that of a child of this process.

        `streams` are its stdin, stdout and stderr. `until` is the deadline in the monotonic clock. Raises `OSError`,
        `EOFError` and `ForkServerError`. After an error, close this object, and there is no worker.
        """
        pid = self._await_pid(until)
        peek = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, pid, peek) is not None:  # raises unless it is our child
            # A frozen fork would accept the request, and never begin. It would not end with its socket either.
            os.kill(pid, signal.SIGKILL)
            raise EOFError("it ended or is frozen")
        request = {
            "argv": [_as_bytes(word) for word in command.argv],
            "environ": {_as_bytes(name): _as_bytes(value) for name, value in command.environ.items()},
            "cpus": None if command.cpus is None else sorted(command.cpus),
            "node": os.getpid(),
        }
        text = json.dumps(request).encode() + b"\n"
        self._socket.settimeout(_left(until))
        sent = socket.send_fds(self._socket, [text], list(streams))
        if sent < len(text):  # once all is sent, there is a worker, which an error of an empty send would hide
            self._socket.sendall(text[sent:])
        return pid

    def close(self) -> None:
        """Close the socket. A fork that has not received its whole request ends."""
        self._socket.close()

    def _await_pid(self, until: float) -> int:
        """Wait until the intermediate process has ended; return the id of the fork, which is our child by then."""
        pid, is_child, unread = 0, False, b""
        while not (pid and is_child):
            self._socket.settimeout(_left(until))
            if not (received := self._socket.recv(ANSWER_BYTES_MAX)):
                raise EOFError("it ended")
            *lines, unread = (unread + received).split(b"\n")
            for line in lines:
                if line.isdigit():
                    pid = int(line)
                elif line == FORKED:
                    is_child = True
                else:
                    raise ForkServerError(line.decode(errors="replace"))
        return pid


def _as_bytes(text: str) -> str:
    """Return the bytes of a text in the system's encoding, each as a character; see `hook/preload_parent.py`."""
    return os.fsencode(text).decode("latin-1")


def _left(until: float) -> float:
    return max(0.001, until - time.monotonic())


class ForkServer:
    """A running parent interpreter. All methods are for the main thread, in the running event loop."""

    def __init__(self, command: WorkerCommand, modules: Sequence[str] | None, optional: Sequence[str] = ()) -> None:
        """Start the interpreter with the command line of a worker, to import `modules`, and `optional` ones that exist.

        If `modules` is None, it only reports that Python has found the hook. Raises `OSError`, `SubprocessError` and
        `ValueError` if no process can be started.
        """
        self._loop = asyncio.get_running_loop()
        self._unread = b""
        """The bytes of an incomplete line."""
        self._mark = secrets.token_hex(16)
        self._ended = asyncio.Event()
        self.usable = False
        """Whether the interpreter has imported everything, and nothing has failed since."""
        self._waiting: deque[WaitingFork] = deque()
        """The forks for the next round, including those that were only requested so far."""
        self._ahead: asyncio.TimerHandle | None = None
        """The timer for the forks of the next round."""
        self._link, theirs = socket.socketpair()
        self._link.setblocking(False)
        try:
            with theirs:
                settings = {"socket": theirs.fileno(), "modules": modules, "optional": optional}
                self._process = _start(command, self._mark, settings)
            self._pidfd = pidfd_of_child(self._process.pid, self._process.wait)
        except BaseException:
            self._link.close()
            raise
        self._loop.add_reader(self._pidfd, self._record_end)

    @property
    def pid(self) -> int:
        """The process id of the interpreter."""
        return self._process.pid

    async def end(self) -> None:
        """Wait for the end of the interpreter, then raise `ForkServerError`, which says how it ended."""
        await self._ended.wait()
        raise ForkServerError(f"the interpreter {await self._await_end()}")

    async def prepare(self) -> int:
        """Wait until the interpreter has imported everything; return how many modules it has.

        Raises `ForkServerError`, or `ColdError` if another interpreter would fail too.
        """
        importing = "site"
        try:
            async with asyncio.timeout(IMPORT_WITHIN_S):
                while True:
                    match await self._receive():
                        case {"importing": name}:
                            importing = name
                        case {"refused": reason, "cause": cause}:
                            raise ColdError(reason, ColdCause(cause))
                        case {"ready": count}:
                            self._link.settimeout(FORK_WITHIN_S)  # it now takes requests for forks, by calls that block
                            self.usable = True
                            return int(count)
        except TimeoutError:
            raise ForkServerError(f"module {importing} is still not imported after {IMPORT_WITHIN_S:g} s") from None
        except (EOFError, ConnectionError):
            ending = await self._await_end()
            raise ForkServerError(f"the interpreter {ending} in the import of module {importing}") from None

    def fork(self, command: WorkerCommand, streams: Sequence[int]) -> int:
        """Turn a waiting or a new fork into a worker; return its process id, which is that of a child of this process.

        `streams` are its stdin, stdout and stderr. Raises `ForkServerError` after ending the interpreter; then there is
        no worker.
        """
        until = time.monotonic() + FORK_WITHIN_S
        while self._waiting:  # if one of them has ended meanwhile, the next one may be better
            with closing(self._waiting.popleft()) as fork, suppress(OSError, EOFError, ForkServerError):
                return fork.become(command, streams, until)
        try:
            with closing(WaitingFork(self._link)) as fork:
                return fork.become(command, streams, until)
        except (OSError, EOFError, ForkServerError) as error:
            self._kill()
            problem = f"no answer within {FORK_WITHIN_S:g} s" if isinstance(error, TimeoutError) else str(error)
            raise ForkServerError(f"the interpreter of --preload has not forked it: {problem}") from error

    def fork_ahead(self, number: int) -> None:
        """Request forks for the next round, until `number` of them wait; ignore a failure."""
        with suppress(OSError):
            while self.usable and len(self._waiting) < number:
                self._waiting.append(WaitingFork(self._link))

    def fork_ahead_later(self, number: int) -> None:
        """Call `fork_ahead` once the workers of the present round have started."""
        if self._ahead is not None:
            self._ahead.cancel()
        self._ahead = self._loop.call_later(AHEAD_AFTER_S, self.fork_ahead, number)

    async def close(self) -> None:
        """End the interpreter, waiting forks, and processes that modules have started. Workers live on."""
        self._kill()
        while self._waiting:
            self._waiting.popleft().close()
        try:
            # In a thread, because it reads all of /proc, and a large process takes seconds to die.
            await asyncio.to_thread(kill_marked, self._mark, timeout_s=END_WITHIN_S)
            await self._ended.wait()
            self._process.wait()
        except UnkillableError:
            # The interpreter hangs in the kernel. With a return code, Popen does not warn that it is still running.
            self._record_end()
            self._process.returncode = 0
        self._link.close()

    async def _await_end(self) -> str:
        """Wait until an interpreter that has closed its connection ends; return how it ended."""
        try:
            async with asyncio.timeout(END_WITHIN_S):
                await self._ended.wait()
        except TimeoutError:
            return "has closed its connection to the node"
        return f"ended ({describe_exit(self._process.wait())})"

    def _kill(self) -> None:
        self.usable = False
        self._process.kill()  # this does nothing if the process has ended

    def _record_end(self) -> None:
        self.usable = False
        if self._ended.is_set():
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set()

    async def _receive(self) -> dict[str, Any]:
        while b"\n" not in self._unread:
            received = await self._loop.sock_recv(self._link, LINE_BYTES_MAX)
            if not received:
                raise EOFError("it ended")
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


def _start(command: WorkerCommand, mark: str, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the process. Raises the errors of `Popen`."""
    pythonpath = command.environ.get("PYTHONPATH")
    settings |= {
        "hook": _as_bytes(str(HOOK)),
        "gloo": _as_bytes(workerlib.gloo.__file__),
        "responder": _as_bytes(workerlib.responder.__file__),
        "recorder": _as_bytes(workerlib.contract.recorders.__file__),
        "pythonpath": None if pythonpath is None else _as_bytes(pythonpath),
        "room": " " * ROOM_BYTES,
    }
    return subprocess.Popen(  # noqa: S603 - the worker's own command
        command.argv,
        env={
            **CHECKS_BY_NVML,
            **command.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(HOOK), pythonpath))),
            SETTINGS_VARIABLE: json.dumps(settings),
            MARK_VARIABLE: mark,  # not that of the workers, because the interpreter outlives the sweep of a round
        },
        stdin=subprocess.DEVNULL,
        stdout=2,  # modules may print during their import, and that is no output of a worker
        pass_fds=(settings["socket"],),
        start_new_session=True,
        preexec_fn=die_with_parent(command.cpus),  # noqa: PLW1509 - see `spawn`
    )
