"""Starts one worker: in its own session, with default signals, and bound to die with nodeclient."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.runtime.process_limits import INHERITED_CORE, INHERITED_FILES
from nodeclient.host.syscalls import pidfd_open

EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126
"""The exit codes of a shell in these two cases (POSIX, Shell Command Language, 2.8.2)."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
"""Errors for lack of a resource for another process, which may be available later (fork(2), execve(2)).
`coordinatord.hints` has the remedies."""

_PR_SET_PDEATHSIG = 1
"""The value in linux/prctl.h."""

_LIBC = ctypes.CDLL(None)
"""The C library, loaded at import, because nothing should be loaded between fork and exec."""


LOCAL_RANK_MACRO = "${local_rank}"
"""The placeholder for the local rank in the arguments of a command, as in torch (`macros.local_rank`). Any other `$`
stays as it is; torch turns `$$` into `$`, which would break `sh -c 'echo $$'`."""


class WorkerCommand(Struct, frozen=True):
    """One worker: its command line, whose first word is looked up in PATH, and its whole environment."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    cpus: frozenset[int] | None = None
    """The CPUs that it may use; None for all CPUs of this process."""
    slots: int | None = None
    """The descriptor of the memory for its steps, which it inherits; None without one."""


class SpawnError(OperationalError):
    """A worker could not be started; the text says why and what to do."""

    def __init__(self, local_rank: int, message: str, exit_code: int) -> None:
        """Create the error; `exit_code` is that of a shell, or 71 if the system lacks a resource at the moment."""
        super().__init__(message)
        self.local_rank = local_rank
        self.exit_code = exit_code


Spawn = Callable[[WorkerCommand, int, int, int, bool], int]
"""A function that starts a worker, as `spawn` does."""


def spawn(command: WorkerCommand, local_rank: int, stdout: int, stderr: int, with_stdin: bool = False) -> int:
    """Start the worker; return its process id, which the caller reaps.

    It inherits the two descriptors, that of its slots and, if `with_stdin`, this process's stdin, but no others. All
    stay open here.

    Call it in the main thread, since the kernel kills the worker when the *thread* that started it ends. Raises
    `SpawnError`, and then leaves no process.
    """
    if command.cpus is not None and not command.cpus <= os.sched_getaffinity(0):
        message = f"CPUs {sorted(command.cpus - os.sched_getaffinity(0))} are not for this process: see taskset -p $$"
        raise SpawnError(local_rank, message, EXIT_NOT_EXECUTABLE)
    try:
        with stdin_of_worker(with_stdin) as stdin:
            # The worker's command runs as its user wrote it, without a shell.
            process = subprocess.Popen(  # noqa: S603
                command.argv,
                env=command.environ,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=() if command.slots is None else (command.slots,),
                start_new_session=True,
                # Python code between fork and exec can deadlock on a lock that another thread held at the fork. This
                # code takes no lock: it makes plain system calls, and the interpreter and glibc reset their own locks
                # in the child. A helper program instead would cost each worker 20 ms and hide why exec failed. Without
                # the death signal, a worker could outlive a nodeclient whose guard died first.
                preexec_fn=die_with_parent(command.cpus),  # noqa: PLW1509
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise _explain(command, local_rank, error) from error
    process.returncode = 0  # keeps Popen from warning that the process is still running
    return process.pid


def pidfd_of_child(pid: int, wait: Callable[[], object]) -> int:
    """Return a pidfd of a process that was just started in its own session, and that `wait` reaps.

    Raises `OSError`, after it has killed the process, which nobody could watch.
    """
    try:
        return pidfd_open(pid)
    except OSError:
        os.killpg(pid, signal.SIGKILL)
        wait()
        raise


@contextmanager
def stdin_of_worker(own: bool) -> Iterator[int]:
    """Yield a descriptor for a worker's stdin: with `own` this process's stdin if it is open, else an empty file."""
    if own and _is_open(0):
        yield 0
        return
    empty = os.open(os.devnull, os.O_RDONLY)
    try:
        yield empty
    finally:
        os.close(empty)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def check_program(command: WorkerCommand) -> None:
    """Check that the program of a command exists and is executable. Raises `SpawnError`."""
    program = command.argv[0]
    path = command.environ.get("PATH", os.defpath)
    if shutil.which(program, path=path) is None:
        missing = shutil.which(program, mode=os.F_OK, path=path) is None
        raise _explain(command, 0, FileNotFoundError() if missing else PermissionError())


def die_with_parent(cpus: frozenset[int] | None = None) -> Callable[[], None]:
    """Return a function for a child to call between fork and exec, after which it dies with this process.

    The function also restores default signals, and the limits that this process had at its start. With `cpus`, the
    child runs only on these. Everything possible is computed here, before the fork.
    """
    parent = os.getpid()
    # exec keeps ignored signals ignored, so workers under nohup or in a shell's background would ignore them too.
    ignored = [signum for signum in signal.valid_signals() if signal.getsignal(signum) is signal.SIG_IGN]

    # The limits of nodeclient itself are not for its workers. With a high limit of files, a program may make large
    # tables, and select(2) fails for descriptors from 1,024 on. Whether it writes core files is its user's choice.
    inherited = {resource.RLIMIT_NOFILE: INHERITED_FILES, resource.RLIMIT_CORE: INHERITED_CORE}
    changed = [(kind, limits) for kind, limits in inherited.items() if resource.getrlimit(kind) != limits]

    def prepare() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            # The parent died before the line above took effect, so this child would never get the signal.
            os._exit(1)
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
        for kind, limits in changed:
            resource.setrlimit(kind, limits)
        for signum in ignored:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    return prepare


def _explain(command: WorkerCommand, local_rank: int, error: Exception) -> SpawnError:
    program = command.argv[0] if command.argv else ""
    path = command.environ.get("PATH", os.defpath)
    executable = shutil.which(program, mode=os.F_OK, path=path)
    exit_code = EXIT_NOT_EXECUTABLE
    if isinstance(error, FileNotFoundError) and executable is None:
        exit_code = EXIT_NOT_FOUND
        message = f"the command {program!r} was not found: {_why_not_found(program)}"
    elif isinstance(error, FileNotFoundError):
        exit_code = EXIT_NOT_FOUND
        message = f"{executable} cannot be started: the interpreter that its first line names is not on this host"
    elif isinstance(error, PermissionError):
        message = (
            f"{executable or program} may not be executed: make it executable (chmod +x), or name its interpreter"
            " before it, such as: python train.py"
        )
    elif isinstance(error, OSError):
        message = f"{executable or program} cannot be started: {error.strerror}"
        if error.errno in _EXHAUSTED:
            exit_code = ExitCode.OS_ERROR
    else:
        message = f"{program!r} cannot be started: {error}"
    return SpawnError(local_rank, message, exit_code)


def _why_not_found(program: str) -> str:
    if os.path.isdir(program):  # noqa: PTH112 - as in the shell's own search
        return "it is a directory"
    if os.path.exists(program) and os.sep not in program:  # noqa: PTH110 - the same
        return f"it is a file here, but no program in PATH: did you mean `python {program}`?"
    if os.sep in program:
        return "there is no such file; install it on this host"
    return "it is in no directory of PATH; install it on this host, or give its full path"
