"""Honest nodes lose nothing among hostile peers, on a host whose descriptors run out and whose disk gets full.

The form of 2,000 nodes, whose coordinator also has a clock that steps (by faketime), is
`python -m tests.chaos.test_hostile`, a part of `make chaos`. In CI the clock steps under few nodes: on a busy machine a
program under faketime that has much to do may stand still for seconds when its clock steps.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from coordinatord.runtime.pinned_tls import pinned_context
from tests.support.disks import fill, small_disk
from tests.support.hostile import KINDS
from tests.support.lives import ROOT
from tests.support.programs import BIN, TIMEOUT_S, Program, clean_environ, run, wait_until

TRUSTING = pinned_context(lambda _: None)

NODES, FEW_NODES = 200, 20
HOSTILE_SHARE = 0.05

STEPS_OF_CLOCK = ("+1d", "-2d", "+0")
"""How far the coordinator's clock is off, one after the other."""

DISK_KIB = 64 * 1024
"""Room for the records of 2,000 nodes, several times."""


class Besieged:
    """A coordinator as it is by default, with few descriptors and a small disk."""

    def __init__(self, folder: Path, stack: ExitStack, descriptors: int, *, clock_steps: bool) -> None:
        self.disk = folder / "disk"
        self._folder = folder
        self._stack = stack
        self.environ = clean_environ(COORDINATORD_INSECURE="", XDG_CONFIG_HOME=str(folder / "config"))
        self._clock = folder / "clock"
        self._clock.write_text("+0")
        clock = as_set_in(self._clock) if clock_steps else {}
        prefix = (*small_disk(self.disk, DISK_KIB), "prlimit", f"--nofile={descriptors}")
        where = ("--host", "127.0.0.1", "--port", "0", "--state-dir", self.disk / "state", "--settle", "0.4")
        self.program = self.start(*prefix, BIN / "coordinatord", *where, environ={**self.environ, **clock})
        found = self.program.await_line(r"coordinatord listening on https://\S+:(\d+)")
        self.port = int(found[1])
        [self.tokens] = (folder / "config" / "coordinatord" / "tokens").iterdir()

    def start(self, *argv: str | Path, environ: dict[str, str], **options: int) -> Program:
        """Start a program that ends with the test."""
        program = Program(*argv, environ=environ, cwd=ROOT, **options)
        self._stack.callback(program.close)
        if program.process.stdin is not None:
            self._stack.callback(program.process.stdin.close)
        return program

    def seen(self, path: Path) -> Path:
        """Return a file of its disk as others see it."""
        return Path(f"/proc/{self.program.pid}/root{path}")

    def fleet(self, size: int) -> Program:
        """Start the honest nodes."""
        environ = {**self.environ, "NODECLIENT_TOKEN_FILE": str(self.tokens)}
        place = ("127.0.0.1", str(self.port), "fleet", str(size))
        return self.start(sys.executable, "-m", "tests.support.fleet", *place, environ=environ, stdin=subprocess.PIPE)

    def hostile(self, count: int) -> Program:
        """Start the others, who have a token of their own."""
        theirs = self._folder / "theirs"
        token = ("token", "new", "--name", "theirs", "--output", theirs)
        where = ("--state-dir", self.seen(self.disk / "state"))
        done = run(BIN / "coordinatord", *token, *where, environ=self.environ)
        assert done.returncode == 0, done.stderr
        place = ("127.0.0.1", str(self.port), str(theirs), "sim-0000", str(count))
        return self.start(
            sys.executable, "-m", "tests.support.hostile", *place, environ=self.environ, stdin=subprocess.PIPE
        )

    def run_out_of_descriptors(self) -> None:
        """Let the coordinator have no descriptor more for a moment, until it has said so."""
        limit = resource.prlimit(self.program.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.program.pid, resource.RLIMIT_NOFILE, (0, limit[1]))
        try:
            self.program.await_line("new connections have to wait, again and again")
        finally:
            resource.prlimit(self.program.pid, resource.RLIMIT_NOFILE, limit)

    def step_clock(self, offset: str) -> None:
        """Set the coordinator's clock, and wait until it shows."""
        self._clock.write_text(offset)
        wanted = datetime.now(UTC) + timedelta(days=int(offset.rstrip("d")))
        wait_until(f"a clock at {offset}", lambda: abs(self._shown_time() - wanted) < timedelta(hours=12))

    def _shown_time(self) -> datetime:
        """Return the coordinator's time, which each of its answers has."""
        url = f"https://127.0.0.1:{self.port}/healthz"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=TRUSTING) as answer:
            return parsedate_to_datetime(answer.headers["Date"])

    def health(self) -> tuple[int, float]:
        """Return the status of /healthz, and how long it took."""
        began = time.monotonic()
        url = f"https://127.0.0.1:{self.port}/healthz"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=TRUSTING) as answer:
                return answer.status, time.monotonic() - began
        except urllib.error.HTTPError as error:
            return error.code, time.monotonic() - began


def as_set_in(clock: Path) -> dict[str, str]:
    """Return the variables for a program whose clock is as far off as a file says; its monotonic one goes on.

    Without the last of them each wait of a Python thread for another ends at once, and the program spins: it takes 30
    times as much of the processor.
    """
    [library] = faketime()
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }


def faketime() -> Iterator[Path]:
    """Yield the library with which the clock of one program is set, if this host has it."""
    return Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")


def events_of(fleet: Program) -> Counter[str]:
    """Return how often the nodes have said what."""
    return Counter(json.loads(line)["event"] for line in list(fleet.lines))


def besiege(
    folder: Path, nodes: int, descriptors: int, seconds: float, clock_steps: Sequence[str] = ()
) -> dict[str, float]:
    """Play it, and set the clock by each of the steps.

    Return how often hostile peers did their worst, and the slowest answers to /healthz and to heartbeats in ms.
    """
    with ExitStack() as stack:
        place = Besieged(folder, stack, descriptors, clock_steps=bool(clock_steps))
        fleet = place.fleet(nodes)
        wait_until("all nodes to be attached", lambda: events_of(fleet)["attached"] == 1)
        hostile = place.hostile(max(len(KINDS), int(nodes * HOSTILE_SHARE)))
        answers: list[tuple[int, float]] = []

        def looks_well(until: float) -> None:
            while time.monotonic() < until:
                answers.append(place.health())
                assert hostile.reading, hostile.output

        looks_well(time.monotonic() + seconds)
        for offset in clock_steps:
            place.step_clock(offset)
            looks_well(time.monotonic() + seconds / len(clock_steps))
        place.run_out_of_descriptors()
        looks_well(time.monotonic() + seconds)
        ballast = place.seen(place.disk / "ballast")
        fill(ballast)
        wait_until("a complaint", lambda: place.health()[0] == 503)
        ballast.unlink()
        wait_until("the end of it", lambda: place.health()[0] == 200)
        looks_well(time.monotonic() + seconds)

        assert hostile.process.stdin is not None
        hostile.process.stdin.close()
        assert hostile.wait() == 0, hostile.output
        done = json.loads(hostile.lines[-1])
        assert place.program.reading, place.program.output
        assert events_of(fleet) == {"attached": 1, "started": nodes}, f"a session broke:\n{place.program.output}"
        assert {status for status, _ in answers} == {200}
        assert "Traceback" not in place.program.output
        worst = max(took for _, took in answers)
        return {
            **done,
            "worst answer of /healthz, ms": round(worst * 1_000, 1),
            "answers": len(answers),
            **waits_of(fleet),
        }


def waits_of(fleet: Program) -> dict[str, float]:
    """End the honest nodes; return how long their heartbeats waited for answers, in ms."""
    assert fleet.process.stdin is not None
    fleet.process.stdin.close()
    assert fleet.wait() == 0, fleet.output
    said = json.loads(fleet.lines[-1])
    return {
        "heartbeats": said["times"],
        "median answer to a heartbeat, ms": round(said["median_ms"], 1),
        "one of a hundred waited, ms": round(said["late_ms"], 1),
        "worst answer to a heartbeat, ms": round(said["worst_ms"], 1),
    }


@pytest.mark.slow
def test_honest_nodes_lose_nothing_among_hostile_ones(tmp_path: Path) -> None:
    if shutil.which("prlimit") is None:
        pytest.skip("few descriptors need prlimit of util-linux")
    found = besiege(tmp_path, NODES, descriptors=1_024, seconds=2.0)
    assert min(found.values()) > 0, "each kind has done its worst"


@pytest.mark.long
@pytest.mark.slow
def test_the_coordinators_clock_may_step_by_days_and_nobody_is_lost(tmp_path: Path) -> None:
    if not list(faketime()):
        pytest.skip("the clock of one program is set by faketime")
    with ExitStack() as stack:
        place = Besieged(tmp_path, stack, descriptors=1_024, clock_steps=True)
        fleet = place.fleet(FEW_NODES)
        wait_until("all nodes to be attached", lambda: events_of(fleet)["attached"] == 1)
        for offset in STEPS_OF_CLOCK:
            place.step_clock(offset)
        assert waits_of(fleet)["heartbeats"] > FEW_NODES, "some came after the clock had stepped"
        assert events_of(fleet) == {"attached": 1, "started": FEW_NODES, "answered": 1}, place.program.output


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place_of_all:
        figures = besiege(Path(place_of_all), 2_000, descriptors=8_192, seconds=20.0, clock_steps=STEPS_OF_CLOCK)
    sys.stdout.write("".join(f"  {what}: {number:g}\n" for what, number in figures.items()))
