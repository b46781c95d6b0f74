"""The guard: a small process that outlives its nodeclient just long enough to clean up what that left behind.

`guard` starts it. It says on its stdout that it is up. It reads the mark from the first line of its stdin, the path of
the nodeclient's private directory from the second, and then waits for the end of the file, which comes when the
nodeclient dies, even by SIGKILL. It imports next to nothing, so that it starts in 20 ms and stays in 11 MB.
"""

import os
import signal
import stat
import sys

from nodeclient.workers.process_tree import UnkillableError, kill_marked

READY = b"\n"
"""All that the guard writes to its stdout: from then on the nodeclient may die."""


def main() -> None:
    """Wait until stdin ends, then kill all that carries the mark and remove the directory; exit 1 if that fails."""
    # Whoever ends a whole process tree or terminal session must not end the guard before the workers.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    try:  # noqa: SIM105  # contextlib would double the guard's start
        os.write(sys.stdout.fileno(), READY)
    except BrokenPipeError:
        pass  # the nodeclient has died already, and what it left is to be cleaned up
    mark = sys.stdin.buffer.readline().decode().strip()
    folder = sys.stdin.buffer.readline().rstrip(b"\n")
    sys.stdin.buffer.read()
    # Without a mark, the nodeclient died before it could have started a worker.
    if mark:
        try:
            kill_marked(mark)
        except UnkillableError as error:
            sys.exit(f"nodeclient's guard: {error}")
    if folder:
        _remove(folder)


def _remove(folder: bytes) -> None:
    """Remove a directory of plain files; what else is in there stays, and so does the directory."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # the nodeclient has removed it, never made it, or somebody has put something else there
        return
    try:
        # Not by its owner: on some network file systems what root makes belongs to nobody.
        if not os.fstat(fd).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            for name in os.listdir(fd):  # noqa: PTH208  # pathlib would double the guard's start
                os.unlink(name, dir_fd=fd)
            os.rmdir(folder)  # noqa: PTH106
    except OSError:  # somebody keeps something there
        return
    finally:
        os.close(fd)
