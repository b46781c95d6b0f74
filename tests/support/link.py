"""A bad network between hosts: each gets one more device, whose packets take their time, are lost, or are cut off.

The packets pass through a program of our own (`link_process`) and not through `tc netem`, because netem is a module
that the kernels of many containers and CI machines do not have, while TUN devices are in nearly all of them. The hosts
see the same: whole IP packets late or gone, without a notice. There is one way for all machines, so that a test means
the same everywhere.

`hosts` has the hosts themselves.
"""

import fcntl
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address
from itertools import permutations
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.hosts import Hosts, ip

PROGRAM = Path(__file__).with_name("link_process.py")

FIRST_ADDRESS = IPv4Address("10.231.18.1")
"""An address that exists on these devices only, beside the network of `hosts`."""

TUN = Path("/dev/net/tun")

TUNSETIFF = 0x400454CA
"""The ioctl that makes a device of an open `TUN`, see linux/if_tun.h."""

IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
"""IP packets, and nothing but them."""

QUEUE_PACKETS = "10000"
"""The length of the kernel's queue before the program: only the program may lose packets."""

INTERFACE_REQUEST = "16sH22x"
"""struct ifreq: name and flags; 40 bytes in all."""


class Link:
    """A network of its own for some hosts. It begins perfect."""

    def __init__(self, hosts: Hosts, seed: int = 0) -> None:
        """Build a perfect network; `seed` decides which packets are lost where there is a loss."""
        self._hosts = hosts
        self._seed = seed
        self._devices: dict[str, int] = {}
        self._switch: subprocess.Popen[str] | None = None
        self.address = {name: str(FIRST_ADDRESS + index) for index, name in enumerate(hosts.address)}

    def __enter__(self) -> Self:
        try:
            for name in self.address:
                self._devices[name] = self._plug_in(name)
            self._switch = self._start()
        except OSError as error:
            pytest.skip(f"{TUN} cannot be opened here: {error.strerror}")
        finally:
            self._let_go()
        return self

    def __exit__(self, *_: object) -> None:
        if self._switch is not None:
            self._switch.communicate()  # the end of its input is its end
            assert self._switch.returncode == 0, "the program between the hosts has failed"

    def shape(self, *, delay_s: float, loss: float, towards: str | None = None) -> None:
        """Delay every packet and lose this share of them: in each direction, or only of those sent `towards` a host."""
        for source, target in self._ways():
            if towards in {None, target}:
                self.set_way(source, target, delay_s=delay_s, loss=loss)

    def cut(self, source: str, target: str) -> None:
        """Drop all packets from one host to another; the other direction stays as it is."""
        self.set_way(source, target, cut=True)

    def mend(self) -> None:
        """End all cuts."""
        for source, target in self._ways():
            self.set_way(source, target, cut=False)

    def set_way(self, source: str, target: str, **settings: float) -> dict[str, int]:
        """Set `delay_s`, `loss` or `cut` of one direction; return the counts of its packets so far."""
        assert self._switch is not None, "not connected"
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        self._switch.stdin.write(f"{json.dumps({'source': source, 'target': target, **settings})}\n")
        self._switch.stdin.flush()
        answer: dict[str, int] = json.loads(self._switch.stdout.readline())
        return answer

    def _ways(self) -> Iterator[tuple[str, str]]:
        return permutations(self.address, 2)

    def _plug_in(self, name: str) -> int:
        """Make a device here, and move it to the host while we hold its other end."""
        device = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
        try:
            request = struct.pack(INTERFACE_REQUEST, b"link%d", IFF_TUN | IFF_NO_PI)
            made: Any = fcntl.ioctl(device, TUNSETIFF, request)
            interface = made[:16].rstrip(b"\0").decode()
            inside = self._hosts.on(name)
            namespace = inside[-1]
            ip("link", "set", interface, "netns", namespace)
            ip("-n", namespace, "address", "add", f"{self.address[name]}/24", "dev", interface)
            ip("-n", namespace, "link", "set", interface, "txqueuelen", QUEUE_PACKETS, "up")
        except BaseException:
            os.close(device)
            raise
        return device

    def _start(self) -> subprocess.Popen[str]:
        devices = {
            name: (device, IPv4Address(self.address[name]).packed.hex()) for name, device in self._devices.items()
        }
        return subprocess.Popen(
            [sys.executable, "-S", "-E", str(PROGRAM), json.dumps({"devices": devices, "seed": self._seed})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=list(self._devices.values()),
            text=True,
        )

    def _let_go(self) -> None:
        """Leave the devices to the switch: they go when it does."""
        for device in self._devices.values():
            os.close(device)
        self._devices.clear()
