"""The guard: a small process that outlives its nodeclient just long enough to kill what that left behind.

`guard` starts it. It reads the mark from the first line of its stdin and then waits for the end of the file, which
comes when the nodeclient dies, even by SIGKILL. It imports next to nothing, so that it starts in 20 ms and stays in 11
MB.
"""

import signal
import sys

from nodeclient.processes import UnkillableError, kill_marked


def main() -> None:
    """Wait until stdin ends, then kill everything that carries the mark; exit 1 if that fails."""
    # Whoever ends a whole process tree or terminal session must not end the guard before the workers.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    mark = sys.stdin.readline().strip()
    sys.stdin.read()
    # Without a mark, the nodeclient died before it could have started a worker.
    if mark:
        try:
            kill_marked(mark)
        except UnkillableError as error:
            sys.exit(f"nodeclient's guard: {error}")
