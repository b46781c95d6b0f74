"""Runs one command as a job twice, its workers started cold and then warm, and returns the results of both.

Both run in the same folder with the same files, so that nothing but the way of starting differs.
"""

import difflib
import json
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinatord.protocol.messages import ColdCause
from tests.support.cluster import Coordinator
from tests.support.fixtures import NODE_TRACEBACK
from tests.support.programs import BIN, TIMEOUT_S, TOKEN_VARIABLE, carriers, clean_environ, kill_quietly, wait_until
from tests.support.scrapes import Scrape

LIBRARY = Path(__file__).with_name("library")
"""Modules that every script here can import."""

LIGHT = "json,decimal"
"""The modules that are preloaded where it does not matter which."""

DESCRIBE = '''"""A program that tells everything about itself."""
answer: int = 42
found = dict(globals())
import describe, report
report.report(**describe.everything(found))
'''
"""Also without its docstring, as text on the command line."""

SHOWN = 300
"""The part of a line that is enough to see how two of them differ."""

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z \w+ +nodeclient: (.*)\n")
"""A line of the nodeclient's own among what its workers write to stderr."""

RESPONDER = re.compile(
    r" *Thread 0x \(most recent call first\):\n"
    r" *(?:File \"[^\"]*workerlib/responder\.py\", line \d+ in _serve|<no Python frame>)\n *\n"
)
"""What faulthandler writes of the thread that tells nodeclient where a worker stands: a cold script has none.

Without a frame it has just been started.
"""

OURS = re.compile(r"(?<!/tests)/nodeclient/")
"""A path of a file of nodeclient, and none of its tests. It broke, or stands between Python and the user's script."""


@dataclass(frozen=True)
class Facts:
    """What one worker has reported with `report`."""

    round: int
    rank: int
    warm: bool
    parent: int
    facts: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """One job that is over, seen from outside."""

    code: int
    stdout: str
    stderr: str
    """What the workers wrote, and the nodeclient's reports, without what differs from one run to the next."""
    log: list[str]
    """The lines of the nodeclient's own."""
    reports: list[Facts]
    """The reports in the order of the rounds, and then of the ranks."""
    files: dict[str, str]
    """What is in the log directory, by path inside the folder of the run."""

    @property
    def facts(self) -> list[dict[str, Any]]:
        """Return the reports of the workers."""
        return [report.facts for report in self.reports]

    @property
    def seen(self) -> dict[str, Any]:
        """All that must be the same, however the workers were started."""
        reports = [{"round": report.round, "rank": report.rank, **report.facts} for report in self.reports]
        return {
            "code": self.code,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "files": self.files,
            "reports": reports,
        }


class Stage:
    """A folder with a user's files, and the jobs that run there."""

    def __init__(self, folder: Path, coordinator: Coordinator) -> None:
        self.folder = folder
        self._coordinator = coordinator
        self._job = ""
        """The job that was run last."""

    @property
    def loaded_by(self) -> list[int]:
        """The processes that have loaded the beacon in the last run."""
        return [int(line) for line in self._beacon.read_text().split()] if self._beacon.exists() else []

    @property
    def _beacon(self) -> Path:
        return self.folder / "beacon.txt"

    @property
    def _reports(self) -> Path:
        return self.folder / "reports.jsonl"

    def write(self, name: str, text: str) -> Path:
        """Write one of the user's files."""
        path = self.folder / name
        assert path.is_relative_to(self.folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def environ(self, **extra: str) -> dict[str, str]:
        """Return the environment of a nodeclient on this stage."""
        own = {"BEACON": str(self._beacon), "TOLD": str(self._reports), "PYTHONPATH": str(LIBRARY)}
        return {**clean_environ(), **own, "NODECLIENT_NODE_ID": "a", **extra}

    def command(
        self, *command: str | Path, preload: str = "", flags: Sequence[str] = (), subcommand: Sequence[str] = ("join",)
    ) -> tuple[str, ...]:
        """Return the command line of a nodeclient that is alone in a job; `subcommand` has its first words."""
        job, where = f"preload-{secrets.token_hex(4)}", self._coordinator.endpoint
        self._job = job
        if subcommand[0] == "join":
            where_and_what: tuple[str, ...] = ("--coord", where, "--job-id", job, "--nnodes", "1")
            separator: tuple[str, ...] = ("--",)
        else:
            where_and_what, separator = ("--rdzv-endpoint", where, "--rdzv-id", job), ()
        warm = ("--preload", preload) if preload else ()
        name, *more = subcommand
        return (str(BIN / "nodeclient"), name, *where_and_what, *warm, *flags, *more, *separator, *map(str, command))

    def run(
        self,
        *command: str | Path,
        preload: str = "",
        flags: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        words: str = "",
        before: Callable[[], None] | None = None,
        subcommand: Sequence[str] = ("join",),
        prefix: Sequence[str] = (),
    ) -> Result:
        """Run a job to its end; nothing of it may be left.

        `before` is called in its process before it is one, and `prefix` comes before its command line.
        """
        self.clear()
        logs = self.folder / f"log-{secrets.token_hex(4)}"
        token = secrets.token_hex(16)
        logging = [str(logs) if flag == "LOGS" else flag for flag in flags]
        process = subprocess.Popen(
            [*prefix, *self.command(*command, preload=preload, flags=logging, subcommand=subcommand)],
            cwd=self.folder,
            env={**self.environ(**(environ or {})), TOKEN_VARIABLE: token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=before,  # noqa: PLW1509 - it makes plain calls of the system alone
        )
        try:
            stdout, stderr = process.communicate(words, TIMEOUT_S)
            wait_until("the end of all that it started", lambda: not carriers(token))
        finally:
            process.kill()
            process.wait()
            for pid in carriers(token):
                kill_quietly(pid)
        reports = self.reports()
        assert not NODE_TRACEBACK.search(stderr), stderr
        assert {report.parent for report in reports} <= {process.pid}, "a worker is a child of its nodeclient"
        return Result(
            process.returncode, stdout, plain(LOG_LINE.sub("", stderr)), LOG_LINE.findall(stderr), reports, _files(logs)
        )

    def both(
        self, *command: str | Path, preload: str = LIGHT, prepare: Callable[[], None] | None = None, **how: Any
    ) -> tuple[Result, Result]:
        """Run a job with cold workers, and another one with warm workers; `prepare` the folder before each."""
        if prepare is not None:
            prepare()
        cold = self.run(*command, **how)
        if prepare is not None:
            prepare()
        warm = self.run(*command, preload=f"beacon,{preload}", **how)
        assert cold.reports, cold.stderr
        assert warm.reports, warm.stderr
        assert not any(report.warm for report in cold.reports)
        assert all(report.warm for report in warm.reports), "\n".join(warm.log)
        return cold, warm

    def cold_rounds(self) -> dict[ColdCause, float]:
        """Return how many rounds of the last job have begun cold in spite of `--preload`, by the causes that were."""
        shown = Scrape(self._coordinator.fetch("/metrics"))
        counts = {cause: shown("cold_rounds_total", job_id=self._job, cause=cause) for cause in ColdCause}
        return {cause: count for cause, count in counts.items() if count}

    def clear(self) -> None:
        """Remove what the last run has left."""
        self._beacon.unlink(missing_ok=True)
        self._reports.unlink(missing_ok=True)

    def reports(self) -> list[Facts]:
        """Return the reports since the last run began."""
        if not self._reports.exists():
            return []
        reports = [Facts(**json.loads(line)) for line in self._reports.read_text().splitlines()]
        return sorted(reports, key=lambda report: (report.round, report.rank))


def python(*words: str | Path) -> tuple[str, ...]:
    """Return the command of a Python program that this Python runs."""
    return (sys.executable, *map(str, words))


def differences(cold: Any, warm: Any, where: str = "") -> list[str]:
    """Return a line for each place at which two descriptions differ."""
    if isinstance(cold, dict) and isinstance(warm, dict):
        names = sorted({*cold, *warm}, key=str)
        return [line for name in names for line in differences(cold.get(name), warm.get(name), f"{where}/{name}")]
    if isinstance(cold, list | tuple) and isinstance(warm, list | tuple) and len(cold) == len(warm):
        pairs = enumerate(zip(cold, warm, strict=True))
        return [line for index, (one, other) in pairs for line in differences(one, other, f"{where}/{index}")]
    if isinstance(cold, str) and isinstance(warm, str) and "\n" in cold + warm:
        changes = difflib.ndiff(cold.splitlines(keepends=True), warm.splitlines(keepends=True))
        return [f"{where}: {line[:SHOWN]!a}" for line in changes if not line.startswith("  ")]
    return [] if cold == warm else [f"{where}: cold {cold!a}, warm {warm!a}"]


def assert_same(cold: Result, warm: Result) -> None:
    found = differences(cold.seen, warm.seen)
    assert not found, "\n".join(["", *found])


def assert_same_start(cold: Result, warm: Result, *, with_macro: bool = False) -> None:
    """Fail with all differences between two jobs whose workers have described themselves.

    Warm workers all have the command line of their parent in /proc, so that a macro stays in it.
    """
    for before, after in zip(cold.facts, warm.facts, strict=True):
        forgive_more_modules(before, after)
        if with_macro:
            assert before["process"].pop("command") != after["process"].pop("command")
    assert_same(cold, warm)


def forgive_more_modules(cold: dict[str, Any], warm: dict[str, Any]) -> None:
    """Check that a warm worker has all modules of a cold one, and none of ours; leave the rest to be compared."""
    modules, more = cold.pop("modules"), warm.pop("modules")
    missing = modules.items() - more.items()
    assert not missing
    ours = {name: file for name, file in more.items() - modules.items() if OURS.search(file) or "custom" in name}
    assert not ours
    importers, others = set(cold.pop("importers")), set(warm.pop("importers"))
    assert importers <= others
    assert not [place for place in others - importers if OURS.search(place)]


def plain(text: str) -> str:
    """Return a report without what differs from one run to the next."""
    text = re.sub(r"\bpid \d+", "pid N", text)
    text = re.sub(r"0x[0-9a-f]+", "0x", text)
    text = RESPONDER.sub("", text)
    text = re.sub(r"log-\w+/preload-\w+/\w+-\d+", "LOGS", text)
    return re.sub(r"(?m)^when .*$", "when", text)


def _files(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".json")
    return {"/".join(path.relative_to(folder).parts[2:]): plain(path.read_text()) for path in paths}
