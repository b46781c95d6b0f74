"""A cluster of real programs on this machine: one coordinatord, nodeclients, and the workers that these start."""

import json
import os
import re
import signal
import ssl
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from coordinatord.protocol.access_token import Role
from coordinatord.runtime.pinned_tls import pin_of, pinned_context
from tests.support.programs import (
    BIN,
    TIMEOUT_S,
    USER_HOME,
    Program,
    as_by_default,
    clean_environ,
    kill_quietly,
    run,
    wait_until,
    zombies,
)
from tests.support.secured import first_token

WORKER = Path(__file__).with_name("worker.py")

TRAINING = (sys.executable, str(Path(__file__).with_name("allreduce.py")))
"""A command that trains for real, with torch and gloo."""

STDLIB_PYTHON = (sys.executable, "-S", "-E")
"""What runs `worker.py`: without site-packages, in 15 ms."""

QUICK = ("--settle", "0.4")
"""A coordinator for tests: elastic rounds close soon."""


EVENT = re.compile(r"(?:\[[^]]*rank \d+\] )?(\{.*)")
"""A worker's event, behind the prefix that it has where several workers share a terminal."""


@dataclass(frozen=True)
class Worker:
    """One worker process, by its own account."""

    pid: int
    rank: int
    local_rank: int
    group_rank: int
    world_size: int
    restarts: int
    round: int
    run: str
    node: str
    reason: str
    address: str
    port: str
    family: list[int]


@dataclass(frozen=True)
class Round:
    """All workers of one round, by rank."""

    number: int
    workers: tuple[Worker, ...]

    @property
    def nodes(self) -> list[str]:
        """The nodes by group rank."""
        return list(dict.fromkeys(worker.node for worker in self.workers))

    @property
    def restarts(self) -> set[int]:
        """The numbers of used restarts that the workers have: one, unless something is wrong."""
        return {worker.restarts for worker in self.workers}

    def on(self, node: str) -> list[Worker]:
        """Return the workers of one node."""
        return [worker for worker in self.workers if worker.node == node]

    def finish(self) -> None:
        """Let all workers succeed."""
        for worker in self.workers:
            kill_quietly(worker.pid, signal.SIGUSR1)


class Coordinator(Program):
    """A coordinatord that serves."""

    def __init__(
        self,
        *flags: str,
        host: str = "127.0.0.1",
        port: int = 0,
        prefix: Sequence[str] = (),
        state_dir: Path | None = None,
        home: Path | None = None,
    ) -> None:
        """Start it and wait until it serves; `prefix` comes before the program, such as `ip netns exec NAME`.

        If there is no `state_dir`, it has one of its own, which is removed with it. With a `home` it runs as by
        default: it serves only those with a token, and its user has this directory as XDG_CONFIG_HOME. It also runs so
        in a test whose user has a home (`USER_HOME`). Otherwise it serves everybody.
        """
        users = os.environ.get(USER_HOME)
        self._home = home if home is not None or users is None else Path(users)
        self._own_state = None if state_dir else tempfile.TemporaryDirectory(prefix="coordinatord-")
        self.state = Path(self._own_state.name) if self._own_state else Path(str(state_dir))
        where = ("--host", host, "--port", str(port), "--state-dir", self.state)
        # Workers here fail with the same error on purpose, and report no steps. Older releases have no such flag.
        environ = {**self.environ, "COORDINATORD_RETRY_PAUSE": "0"}
        super().__init__(*prefix, BIN / "coordinatord", *where, *flags, environ=environ)
        self.url = self.await_line(r"coordinatord listening on (https?://\S+)")[1]
        self.port = int(self.url.rpartition(":")[2])
        self.endpoint = f"127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """The environment of its user, with what a test has set since the daemon was started."""
        return clean_environ(**({} if self._home is None else as_by_default(self._home)))

    def close(self) -> None:
        """Kill it, and take away the state that is its own."""
        super().close()
        if self._own_state:
            self._own_state.cleanup()

    def fetch(self, path: str, accept: str = "*/*") -> str:
        """Return an answer over HTTP, as an admin gets it."""
        headers, context = {"Accept": accept}, None
        if self._home is not None:
            headers["Authorization"] = f"Bearer {first_token(self._home, Role.ADMIN, self._pin).text}"
            context = pinned_context(lambda _: None)
        request = urllib.request.Request(f"{self.url}{path}", headers=headers)  # noqa: S310 - http
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:  # noqa: S310 - as above
            return str(answer.read().decode())

    @cached_property
    def _pin(self) -> str:
        """The hash of its key, which names the file with its tokens: several coordinators may share a home."""
        return pin_of(ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", self.port))))

    def get(self, path: str) -> Any:
        """Return an answer of the HTTP API, from JSON."""
        return json.loads(self.fetch(path, "application/json"))

    def job(self, name: str) -> dict[str, Any] | None:
        """Return the state of a job; None if it is unknown."""
        return next((job for job in self.get("/v1/jobs")["jobs"] if job["job"] == name), None)

    def await_job(self, name: str, **facts: object) -> dict[str, Any]:
        """Wait until the job's state has these facts, such as `state="running"`; return it."""

        def look() -> dict[str, Any] | None:
            job = self.job(name)
            return job if job and all(job[fact] == value for fact, value in facts.items()) else None

        return wait_until(f"job {name} with {facts}", look)


class Launcher(Program):
    """A program with workers, which print JSON objects, one a line."""

    def __init__(self, *command: str | Path, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(*command, environ=environ)
        self._seen = 0
        """The number of lines whose events are known."""
        self._found: list[dict[str, Any]] = []

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of its workers so far, which are the caller's to change."""
        while self._seen < len(self.lines):
            if event := EVENT.match(self.lines[self._seen]):
                self._found.append(json.loads(event[1]))
            self._seen += 1
        return [dict(event) for event in self._found]

    def await_event(self, event: str, **facts: object) -> dict[str, Any]:
        """Wait for this event of one of its workers."""

        def look() -> dict[str, Any] | None:
            ended = not self.reading
            events = (entry for entry in self.events if entry["event"] == event)
            found = next(
                (entry for entry in events if all(entry[name] == value for name, value in facts.items())), None
            )
            assert found or not ended, f"{self.command} ended without {event} {facts}:\n{self.output}"
            return found

        return wait_until(f"{event} {facts} of {self.command}", look)


class Node(Launcher):
    """A nodeclient with its workers."""

    def __init__(
        self,
        name: str,
        job: str,
        coord: str,
        flags: Sequence[str],
        command: Sequence[str],
        *,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; `prefix` as for `Coordinator`."""
        self.name = name
        join = (BIN / "nodeclient", "join", "--coord", coord, "--job-id", job, "--node-id", name)
        super().__init__(*prefix, *join, *flags, "--", *command, environ=environ)

    def await_no_zombies(self) -> None:
        """Wait until it has reaped whatever has ended."""
        wait_until(f"{self.name} to reap its children", lambda: not zombies(self.pid))


class Cluster:
    """The nodes of one job at one coordinator."""

    def __init__(self, coordinator: Coordinator, job: str) -> None:
        self.coordinator = coordinator
        self.job = job
        self.nodes: list[Node] = []

    def join(
        self,
        name: str,
        *flags: str,
        script: str = "",
        command: Sequence[str] = (),
        coord: str = "",
        prefix: Sequence[str] = (),
    ) -> Node:
        """Start a nodeclient; its workers run `worker.py` with the options in `script`, or a command."""
        command = command or (*STDLIB_PYTHON, str(WORKER), *script.split())
        endpoint = coord or self.coordinator.endpoint
        node = Node(name, self.job, endpoint, flags, command, prefix=prefix, environ=self.coordinator.environ)
        self.nodes.append(node)
        return node

    def join_all(self, names: str, *flags: str, script: str = "") -> list[Node]:
        """Start several nodeclients, named by one letter each."""
        return [self.join(name, *flags, script=script) for name in names]

    def rounds(self) -> Iterator[Round]:
        """Yield the rounds of which every worker has printed its first event."""
        found: dict[tuple[str, int], dict[int, Worker]] = {}
        for node in self.nodes:
            for event in node.events:
                if event.pop("event") == "started":
                    worker = Worker(**event)
                    found.setdefault((worker.run, worker.round), {})[worker.rank] = worker
        for (_, number), workers in found.items():
            if sorted(workers) == list(range(workers[max(workers)].world_size)):
                yield Round(number, tuple(workers[rank] for rank in sorted(workers)))

    def await_round(self, world_size: int, after: Round | None = None, nodes: Sequence[str] = ()) -> Round:
        """Wait until all workers of a later round have started, and return the last such round.

        Where a lease is short, a busy machine may cost any node its place: the round to wait for is that of `nodes`.
        """
        least = after.number if after else 0

        def look() -> Round | None:
            rounds = [round_ for round_ in self.rounds() if round_.number > least and len(round_.workers) == world_size]
            wanted = [round_ for round_ in rounds if not nodes or sorted(round_.nodes) == sorted(nodes)]
            return max(wanted, key=lambda round_: round_.number, default=None)

        return wait_until(f"a round of {world_size} after {least} of job {self.job}", look)

    def operate(self, verb: str, *words: str) -> str:
        """Run an operator's command at the coordinator, which succeeds; return what it prints."""
        done = run(BIN / "nodeclient", verb, *words, "--coord", self.coordinator.endpoint)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def await_state(self, **facts: object) -> dict[str, Any]:
        """Wait until the job's state at the coordinator has these facts."""
        return self.coordinator.await_job(self.job, **facts)

    def close(self) -> None:
        """Kill all nodes, and check that nothing of them is left."""
        for node in self.nodes:
            if node.process.poll() is None:
                node.process.kill()
                node.wait()
        try:
            for node in self.nodes:
                node.await_no_leftovers()
        finally:
            for node in self.nodes:
                node.close()

    def __enter__(self) -> Self:
        """Return it, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


@contextmanager
def cluster_of_its_own(job: str, *flags: str) -> Iterator[Cluster]:
    """Yield a job without nodes at a coordinator of its own, which has these flags; end all of it."""
    with Coordinator(*flags) as coordinator, Cluster(coordinator, job) as cluster:
        yield cluster
