"""The switch of a `link`: a program that carries IP packets between TUN devices, late, with losses, or not at all.

Standard library only. `link` starts it and sends one JSON object a line to its standard input; it answers each with a
line, and ends with its input. Its caller decides which hosts are cut off, and when.
"""

import heapq
import json
import os
import random
import selectors
import sys
import time
from dataclasses import dataclass, field
from itertools import count

PACKET_BYTES_MAX = 65_535
"""The longest IP packet that there is."""

QUEUE_MAX = 10_000
"""Packets under way at most; beyond, they are lost as in a real switch. At 200 ms that is 50,000 a second."""

BATCH = 64
"""Packets read from one device before the others have their turn."""


@dataclass(slots=True)
class Way:
    """One direction between two hosts."""

    chance: random.Random
    """Draws once for each packet while there is a loss: which ones are lost follows from the seed alone."""
    delay_s: float = 0.0
    loss: float = 0.0
    cut: bool = False
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("carried", "lost", "cut", "crowded out"), 0))

    def takes(self, *, room: bool) -> bool:
        """Whether the next packet gets through; count it."""
        if self.cut or not room:
            fate = "cut" if self.cut else "crowded out"
        elif self.loss and self.chance.random() < self.loss:
            fate = "lost"
        else:
            fate = "carried"
        self.counts[fate] += 1
        return fate == "carried"


class Switch:
    """Carries packets between hosts; each has one address and one device."""

    def __init__(self, devices: dict[str, tuple[int, bytes]], seed: int) -> None:
        """Take, for each host, the open device and the address."""
        self._devices = {name: device for name, (device, _) in devices.items()}
        self._names = {address: name for name, (_, address) in devices.items()}
        self._ways = {
            (source, target): Way(random.Random(f"{seed} {source} {target}"))  # noqa: S311 - chaos, no secret
            for source in devices
            for target in devices
            if source != target
        }
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._numbers = count()
        """The order of packets that are due at the same moment: first come, first served."""

    def command(self, line: str) -> str:
        """Change or show one way; return the answer."""
        settings = json.loads(line)
        way = self._ways[settings.pop("source"), settings.pop("target")]
        for name, value in settings.items():
            setattr(way, name, value)
        return json.dumps(way.counts)

    def take(self, name: str) -> None:
        """Take in packets that a host has sent."""
        for _ in range(BATCH):
            try:
                packet = os.read(self._devices[name], PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            # An IPv4 header has its version in the first four bits and the destination in bytes 16 to 19 (RFC 791).
            # Anything else comes from a kernel itself, such as its search for IPv6 routers.
            target = self._names.get(packet[16:20]) if packet[0] >> 4 == 4 else None
            if target is None or target == name:
                continue
            way = self._ways[name, target]
            if way.takes(room=len(self._under_way) < QUEUE_MAX):
                due = time.monotonic() + way.delay_s
                heapq.heappush(self._under_way, (due, next(self._numbers), self._devices[target], packet))

    def deliver(self) -> float | None:
        """Hand over the packets that are due; return in how many seconds the next one is, None if there is none."""
        while self._under_way:
            due, _, device, packet = self._under_way[0]
            left_s = due - time.monotonic()
            if left_s > 0:
                return left_s
            heapq.heappop(self._under_way)
            try:
                os.write(device, packet)
            except (BlockingIOError, OSError):
                continue  # the host takes no more, or its device is down: lost
        return None


def main() -> None:
    """Carry packets until standard input ends."""
    settings = json.loads(sys.argv[1])
    devices = {name: (device, bytes.fromhex(address)) for name, (device, address) in settings["devices"].items()}
    switch = Switch(devices, settings["seed"])
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        for name, (device, _) in devices.items():
            os.set_blocking(device, False)
            selector.register(device, selectors.EVENT_READ, name)
        while True:
            for key, _ in selector.select(switch.deliver()):
                if key.data is not None:
                    switch.take(key.data)
                elif not answer(switch):
                    return


def answer(switch: Switch) -> bool:
    """Carry out the next lines of standard input; return False at its end."""
    lines = os.read(0, PACKET_BYTES_MAX)
    for line in lines.decode().splitlines():
        os.write(1, f"{switch.command(line)}\n".encode())
    return bool(lines)


if __name__ == "__main__":
    main()
