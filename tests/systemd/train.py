"""A training process without training, for machines of tests: standard library only, two ranks, one connection.

Each step is an exchange over MASTER_ADDR and MASTER_PORT, as a collective is: it hangs where the other end is gone.
Where it stands is in files of its home directory: `now-RANK`, written anew at each step, and after SIGTERM
`saved-RANK`, which takes as long as `seconds-to-save` says there.
"""

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

STEP_S = 0.02
"""A step is short, so that a test sees the next one soon, and no core is busy with it."""

DEVICE = Path("/dev/nvidia0")
"""Where there is one, training needs it."""

SECONDS_TO_SAVE = Path.home() / "seconds-to-save"


def main() -> None:
    """Train until stopped."""
    rank = int(os.environ["RANK"])
    signal.signal(signal.SIGTERM, lambda *_: save(rank))
    if DEVICE.exists():
        os.close(os.open(DEVICE, os.O_RDWR))
    facts = {"pid": os.getpid(), "round": int(os.environ["COORDINATORD_ROUND"]), "world": os.environ["WORLD_SIZE"]}
    supervised = [name for name in os.environ if name.startswith(("NOTIFY_", "WATCHDOG_", "LISTEN_"))]
    other = meet(rank)
    with suppress(ConnectionError):
        other.sendall(b".")
        while other.recv(1):
            write(f"now-{rank}", facts | {"supervised": supervised})
            time.sleep(STEP_S)  # noqa: TID251 - it stands for work
            other.sendall(b".")
    while True:
        signal.sigtimedwait([], 0.1)  # a signal may come just before a pause, and is not handled then


def meet(rank: int) -> socket.socket:
    """Connect the two ranks."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        with socket.socket() as listener:
            # The node holds the port reserved, and shares it with a process that asks as TCPStore does.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
            return listener.accept()[0]
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            time.sleep(STEP_S)  # noqa: TID251 - rank 0 is not there yet


def save(rank: int) -> None:
    """Save, and end."""
    if SECONDS_TO_SAVE.exists():
        time.sleep(float(SECONDS_TO_SAVE.read_text()))  # noqa: TID251 - it stands for a large model
    write(f"saved-{rank}", {"pid": os.getpid()})
    sys.exit(0)


def write(name: str, facts: dict[str, object]) -> None:
    """Replace a file of the home directory; no reader sees half of it."""
    made = Path.home() / f"{name}.new"
    made.write_text(json.dumps(facts))
    made.rename(Path.home() / name)


if __name__ == "__main__":
    main()
