"""Hosts on one machine: network namespaces on a switch of their own, whose cables can be cut without a FIN."""

import os
import secrets
import shutil
import subprocess
from ipaddress import IPv4Address
from typing import Self

import pytest

FIRST_ADDRESS = IPv4Address("10.231.17.1")
"""An address that exists in these namespaces only."""


class Hosts:
    """A few hosts, each with one address; the switch between them is a bridge in one more namespace."""

    def __init__(self, *names: str) -> None:
        """Make the hosts. Skips the test where namespaces cannot be made."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            pytest.skip("network namespaces need root, and ip of iproute2")
        self._names = names
        self._token = secrets.token_hex(3)
        self._switch = f"coord-{self._token}-switch"
        self.address = {name: str(FIRST_ADDRESS + index) for index, name in enumerate(names)}

    def __enter__(self) -> Self:
        try:
            ip("netns", "add", self._switch)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        try:
            ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", self._switch, "link", "set", "bridge", "up")
            for name in self._names:
                self._add(name)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def on(self, name: str) -> tuple[str, ...]:
        """Return the prefix of a command that is to run on this host."""
        return ("ip", "netns", "exec", self._namespace(name))

    def cut(self, name: str) -> None:
        """Pull the host's cable: no packet arrives any more, not even a FIN."""
        ip("-n", self._switch, "link", "set", f"to-{name}", "down")

    def mend(self, name: str) -> None:
        """Put the cable back."""
        ip("-n", self._switch, "link", "set", f"to-{name}", "up")

    def _namespace(self, name: str) -> str:
        return f"coord-{self._token}-{name}"

    def _add(self, name: str) -> None:
        namespace, port = self._namespace(name), f"to-{name}"
        ip("netns", "add", namespace)
        ip("-n", namespace, "link", "set", "lo", "up")
        ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
        ip("-n", namespace, "address", "add", f"{self.address[name]}/24", "dev", "eth0")
        ip("-n", namespace, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        for namespace in (*map(self._namespace, self._names), self._switch):
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)  # noqa: S607 - any ip


def ip(*arguments: str) -> None:
    """Set up a part of the network, as iproute2 does."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)  # noqa: S607 - any ip
