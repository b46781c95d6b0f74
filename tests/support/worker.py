"""A training process without training, for tests: starts in milliseconds, prints its environment, obeys signals.

Standard library only. It prints one JSON object a line. SIGUSR1 makes it succeed, SIGUSR2 exit with 17, SIGTERM save
and exit; with `--deaf` it ignores SIGTERM. With `--mesh` it holds a connection between rank 0 and every other rank, and
fails with 1 when one breaks, as a collective does; a peer that succeeds sends a byte first. With `--family` it has a
child, a child in another session and an orphan, all of which ignore SIGTERM.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys

FAMILY = """
trap '' TERM INT HUP
sleep 1000 & child=$!
setsid sleep 1000 & session=$!
orphan=$(setsid sh -c 'sleep 1000 > /dev/null & echo $!')
echo $child $session $orphan
wait
"""

DONE = b"."
"""The message of a worker that succeeds to its peers."""

NUMBERS = {
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "group_rank": "GROUP_RANK",
    "world_size": "WORLD_SIZE",
    "restarts": "TORCHELASTIC_RESTART_COUNT",
    "round": "COORDINATORD_ROUND",
}
TEXTS = {
    "run": "COORDINATORD_RUN",
    "node": "COORDINATORD_NODE",
    "reason": "COORDINATORD_REASON",
    "address": "MASTER_ADDR",
    "port": "MASTER_PORT",
}


def emit(event: str, **facts: object) -> None:
    """Print one event in one write, so that the lines of several workers do not mix."""
    ranks = {name: int(os.environ[variable]) for name, variable in NUMBERS.items()}
    texts = {name: os.environ[variable] for name, variable in TEXTS.items()}
    os.write(1, f"{json.dumps({'event': event, 'pid': os.getpid(), **ranks, **texts, **facts})}\n".encode())


def connect() -> list[socket.socket]:
    """Connect rank 0 with all the others; return this rank's connections."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    others = int(os.environ["WORLD_SIZE"]) - 1
    if os.environ["RANK"] == "0":
        with socket.socket() as listener:
            # The node holds the port reserved, and shares it with a process that binds it as TCPStore does.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", port))
            listener.listen(others)
            return [listener.accept()[0] for _ in range(others)]
    while True:
        try:
            return [socket.create_connection((address, port))]
        except ConnectionRefusedError:
            select.select([], [], [], 0.005)  # rank 0 is not there yet
        except ConnectionError:
            sys.exit(1)  # it came and went


def main() -> None:
    """Run until a signal or a broken connection ends it."""
    options = set(sys.argv[1:])
    waking, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)  # a signal that comes just before the wait is seen in it
    connections: list[socket.socket] = []
    signal.signal(signal.SIGUSR1, lambda *_: succeed(connections))
    signal.signal(signal.SIGUSR2, lambda *_: sys.exit(17))
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN if "--deaf" in options else save)
    family = []
    if "--family" in options:
        shell = subprocess.Popen(["sh", "-c", FAMILY], stdout=subprocess.PIPE, text=True)  # noqa: S607 - any sh
        family = [shell.pid, *map(int, shell.stdout.readline().split())] if shell.stdout else []
    emit("started", family=family)
    connections += connect() if "--mesh" in options else []
    if connections:
        emit("connected")
    waited_for: list[int | socket.socket] = [waking, *connections]
    while all(map(is_done, ready := select.select(waited_for, [], [])[0])):
        waited_for = [connection for connection in waited_for if connection not in ready]
    emit("broken")
    sys.exit(1)


def is_done(ready: int | socket.socket) -> bool:
    """Return whether a readable connection is that of a peer that succeeded; it may break from now on."""
    try:
        return isinstance(ready, socket.socket) and ready.recv(len(DONE)) == DONE
    except ConnectionError:
        return False


def succeed(connections: list[socket.socket]) -> None:
    """Exit with 0, and send the peers DONE: this is no failure."""
    for connection in connections:
        with contextlib.suppress(ConnectionError):
            connection.send(DONE)
    sys.exit(0)


def save(*_: object) -> None:
    """Save and exit, as a training script does at SIGTERM."""
    emit("saved")
    sys.exit(0)


if __name__ == "__main__":
    main()
