"""A nodeclient that dies while it sends the first part of kept state that another one requests.

As a program, it becomes nodeclient: `python -m tests.support.dying_holder PROGRAM ARGUMENTS...`
"""

import os
import runpy
import signal
import socket
import sys

from nodeclient.keeping.parts import part_server


def send_half(connection: socket.socket, data: bytes, until: float) -> None:
    """Send half of the data, and die; there is no hurry."""
    del until
    connection.settimeout(None)
    connection.sendall(data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    part_server._send_all = send_half
    del sys.argv[:1]
    runpy.run_path(sys.argv[0], run_name="__main__")
