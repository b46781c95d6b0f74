"""One end of a UDP exchange, for tests of a network; standard library only.

`listen` prints its port, sends echoes back, and prints the numbers that it has received when `end ADDRESS PORT` ends
it. `send ADDRESS PORT COUNT` sends numbers and waits for no answer. `echo ADDRESS PORT` prints how many seconds a
datagram took there and back.
"""

from __future__ import annotations

import json
import socket
import sys
import time

END = b"end"

SEND_BACK = b"echo"

SO_RCVBUFFORCE = 33
"""See socket(7) and asm-generic/socket.h; for root, beyond the limits of the system."""

BUFFER_BYTES = 8 * 1024 * 1024
"""The kernel's buffer of a listener, so that its own slowness loses no datagrams."""


def listen() -> None:
    """Receive datagrams until END."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        here.bind(("0.0.0.0", 0))  # noqa: S104 - in a namespace of its own
        emit({"port": here.getsockname()[1]})
        got: list[int] = []
        while True:
            data, sender = here.recvfrom(64)
            if data == END:
                emit({"got": got})
                return
            if data == SEND_BACK:
                here.sendto(data, sender)
            else:
                got.append(int(data))


def send(address: str, port: int, count: int) -> None:
    """Send numbers one after the other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        for number in range(count):
            here.sendto(str(number).encode(), (address, port))


def end(address: str, port: int) -> None:
    """Send the datagram that ends a listener."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.sendto(END, (address, port))


def echo(address: str, port: int) -> None:
    """Send a datagram and wait for it to come back."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        began = time.monotonic()
        here.sendto(SEND_BACK, (address, port))
        here.recvfrom(64)
        emit({"echo_s": time.monotonic() - began})


def emit(facts: object) -> None:
    """Print one line."""
    print(json.dumps(facts), flush=True)  # noqa: T201 - the test reads it


def main() -> None:
    """Run the command that the arguments name."""
    match sys.argv[1:]:
        case ["listen"]:
            listen()
        case ["send", address, port, count]:
            send(address, int(port), int(count))
        case ["end", address, port]:
            end(address, int(port))
        case ["echo", address, port]:
            echo(address, int(port))


if __name__ == "__main__":
    main()
