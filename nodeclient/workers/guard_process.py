"""The program of the guard: a small process that outlives its nodeclient just long enough to end its workers.

`guard` starts it. It reports on its stdout that it is up, and reads two lines from its stdin: the mark of the workers,
and the path of the nodeclient's private directory. Then it waits for the end of stdin, which comes when the nodeclient
dies, even by SIGKILL. It imports next to nothing, so that it starts in 20 ms and uses only 11 MB.
"""

import os
import signal
import stat
import sys

from nodeclient.workers.process_tree import UnkillableError, kill_marked

READY = b"\n"
"""The guard's only output. Once it is written, the guard ends the workers if the nodeclient dies."""


def main() -> None:
    """Once stdin ends, kill all processes with the mark, and remove the directory; exit with 1 if a process lives."""
    # A signal to a whole process tree or terminal session must not end the guard before the workers.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)
    try:  # noqa: SIM105  # contextlib would double the guard's start
        os.write(sys.stdout.fileno(), READY)
    except BrokenPipeError:
        pass  # the nodeclient has died already, and there is something to clean up
    mark = sys.stdin.buffer.readline().decode().strip()
    folder = sys.stdin.buffer.readline().rstrip(b"\n")
    sys.stdin.buffer.read()
    # If there is no mark, the nodeclient died before it could have started a worker.
    if mark:
        try:
            kill_marked(mark)
        except UnkillableError as error:
            sys.exit(f"nodeclient's guard: {error}")
    if folder:
        _remove(folder)


def _remove(folder: bytes) -> None:
    """Remove a directory of regular files. If it contains anything else, it is not removed."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # the nodeclient has removed it or never made it, or something else is there
        return
    try:
        # The mode is checked and not the owner: on some network file systems, root's files belong to `nobody`.
        if not os.fstat(fd).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            for name in os.listdir(fd):  # noqa: PTH208  # pathlib would double the guard's start
                os.unlink(name, dir_fd=fd)
            os.rmdir(folder)  # noqa: PTH106
    except OSError:  # it holds something that nodeclient did not make
        return
    finally:
        os.close(fd)
