"""Two coordinators over one etcd, and a job: on this host, or each on a host of its own, with three members of etcd."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from coordinatord.config.store_flags import LEASE_S
from coordinatord.security.setup import FOLDER
from nodeclient.host.ports import PortReservation
from tests.support.cluster import QUICK, STDLIB_PYTHON, WORKER, Node
from tests.support.etcd import EtcdCluster
from tests.support.hosts import Hosts
from tests.support.link import Link
from tests.support.programs import BIN, Program, as_by_default, clean_environ, run, wait_until

LEADS = "this coordinator leads"

STANDS_BY = r"stands by: \S+ leads"

SIMPLE = (*STDLIB_PYTHON, str(WORKER))
"""A worker that ends at a signal."""

PORT = 29400

COORDINATORS = ("c0", "c1")
"""The hosts of the coordinators."""

PATIENT_LEASE_S = 15.0
"""A lease that outlasts an election of etcd on a busy machine."""

MEMBERS = ("e0", "e1", "e2")
"""The hosts of etcd."""


class Pair:
    """Two coordinators at one namespace of an etcd, and the nodes of one job."""

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        etcd: EtcdCluster,
        addresses: Sequence[str],
        on: Callable[[str], Sequence[str]] = lambda _: (),
        lease_s: float = LEASE_S,
        home: Path | None = None,
    ) -> None:
        """Start both coordinators, at addresses HOST:PORT; the first one leads.

        `on` returns the prefix of the programs of a host. With a `home`, all run as by default: over TLS and with
        tokens, for a user with this XDG_CONFIG_HOME.
        """
        self._access = ("--insecure",) if home is None else ()
        self._environ = clean_environ(**({} if home is None else as_by_default(home)))
        self._lease = ("--lease", f"{lease_s:g}")
        self.etcd = etcd
        self.store = str(etcd.place("pair"))
        self.addresses = list(addresses)
        self.coord = ",".join(addresses)
        self.nodes: list[Node] = []
        self._folder = folder
        self._stack = stack
        self._on = on
        self.coordinators = [self._begin(0)]
        self.coordinators[0].await_line(LEADS)
        if home is not None:  # nodes know a coordinator by its key
            shutil.copytree(folder / "state-0" / FOLDER, folder / "state-1" / FOLDER)
        self.coordinators.append(self._begin(1))
        self.coordinators[1].await_line(STANDS_BY)

    def _begin(self, place: int) -> Program:
        host, _, port = self.addresses[place].rpartition(":")
        where = ("--host", host, "--port", port, "--advertise", self.addresses[place], *self._access)
        kept = ("--store", self.store, "--state-dir", str(self._folder / f"state-{place}"))
        environ = {**self._environ, "COORDINATORD_RETRY_PAUSE": "0"}
        on = self._on(COORDINATORS[place])
        program = Program(*on, BIN / "coordinatord", *where, *kept, *self._lease, *QUICK, environ=environ)
        self._stack.callback(program.close)
        return program

    def start(self, place: int) -> None:
        """Start one of them again."""
        self.coordinators[place] = self._begin(place)

    def join(self, name: str, command: Sequence[str] = SIMPLE, more: Sequence[str] = ()) -> Node:
        """Start a node, on a host of its name; `more` are flags."""
        flags = ("--nnodes", "2", *self._access, *more)
        node = Node(name, "job", self.coord, flags, command, prefix=self._on(name), environ=self._environ)
        self._stack.callback(node.close)
        self.nodes.append(node)
        return node

    def status(self, on: str = "a") -> str:
        """Return the output of `nodeclient status` on a host; empty if it finds no leader."""
        command = (BIN / "nodeclient", "status", "--coord", self.coord, *self._access)
        done = run(*self._on(on), *command, environ=self._environ)
        return done.stdout if done.returncode == 0 else ""

    def lease_s(self) -> float:
        """Return how many seconds of the leader's lease are left, by its status; 0 without a leader."""
        command = (BIN / "nodeclient", "status", "--coord", self.coord, *self._access, "--json")
        done = run(*self._on("a"), *command, environ=self._environ)
        return float(json.loads(done.stdout)["shared"]["lease_s"]) if done.returncode == 0 else 0.0

    def step_down(self, on: str) -> None:
        """Have the leader step down, by the command on a host."""
        ended = run(*self._on(on), BIN / "coordinatord", "--store", self.store, "--step-down")
        assert (ended.returncode, ended.stdout.count("leads no more\n")) == (0, 1), ended.stderr

    def await_running(self) -> None:
        """Wait until the job runs on both nodes, by the leader's status."""

        def look() -> bool:
            status = self.status()
            return status.count("running") >= 3 and "disconnected" not in status and "silent" not in status

        wait_until("the job to run", look)

    def await_turn(self, place: int) -> None:
        """Wait until a coordinator leads and the other one stands by, by the log of each."""
        wait_until(
            f"coordinator {place} to lead",
            lambda: self.last_role(place) == "leads" and self.last_role(1 - place) == "stands by",
        )

    def last_role(self, place: int) -> str:
        """Return the role that a coordinator has logged last; empty if none."""
        roles = re.findall(f"{LEADS}|{STANDS_BY}", "\n".join(self.coordinators[place].lines))
        return "" if not roles else "leads" if roles[-1] == LEADS else "stands by"

    @property
    def started(self) -> list[dict[str, Any]]:
        """The event of each worker's start, by round."""
        events = [event for node in self.nodes for event in node.events if event["event"] == "started"]
        return sorted(events, key=lambda event: int(event["round"]))

    @property
    def rounds(self) -> list[int]:
        """The rounds in which any worker was started, each as often as it was."""
        return [event["round"] for event in self.started]

    def finish(self) -> None:
        """Let the workers of the first round succeed; there must have been no other round."""
        for node in self.nodes:
            started = [event for event in node.events if event["event"] == "started"]
            assert [event["round"] for event in started] == [1], node.output
            os.kill(started[0]["pid"], signal.SIGUSR1)
        assert [node.wait() for node in self.nodes] == [0, 0]


def on_this_host(
    stack: ExitStack,
    folder: Path,
    members: int = 1,
    *flags: str,
    lease_s: float | None = None,
    home: Path | None = None,
) -> Pair:
    """Start etcd with these flags, and two coordinators; without `lease_s` their lease outlasts an election of etcd.

    `home` as for `Pair`.
    """
    etcd = EtcdCluster(folder / "etcd", members, *flags)
    stack.callback(etcd.close)
    etcd.await_serving()
    reservations = [PortReservation() for _ in COORDINATORS]
    for reservation in reservations:
        stack.callback(reservation.close)
    # Where a member dies, those that are left choose a leader of their own first, which takes a busy machine seconds.
    lease_s = lease_s or (LEASE_S if members == 1 else PATIENT_LEASE_S)
    addresses = [f"127.0.0.1:{reservation.port}" for reservation in reservations]
    return Pair(stack, folder, etcd, addresses, lease_s=lease_s, home=home)


class Site:
    """Three members of etcd, two coordinators and the nodes `a` and `b`, each on a host of its own."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        """Begin with a perfect network. Skips the test where hosts cannot be made."""
        hosts = stack.enter_context(Hosts(*MEMBERS, *COORDINATORS, "a", "b"))
        self.link = stack.enter_context(Link(hosts))
        at = self.link.address
        etcd = EtcdCluster(folder / "etcd", hosts={at[name]: hosts.on(name) for name in MEMBERS})
        stack.callback(etcd.close)
        addresses = [f"{at[name]}:{PORT}" for name in COORDINATORS]
        self.pair = Pair(stack, folder, etcd, addresses, hosts.on, PATIENT_LEASE_S)

    def part(self, ones: Sequence[str], others: Sequence[str]) -> None:
        """Let no packet pass between these hosts and those, in either direction."""
        for host in ones:
            for other in others:
                self.link.cut(host, other)
                self.link.cut(other, host)

    def slow(self, host: str, others: Sequence[str], delay_s: float) -> None:
        """Have each packet between a host and others take so long."""
        for other in others:
            self.link.set_way(host, other, delay_s=delay_s)
            self.link.set_way(other, host, delay_s=delay_s)
