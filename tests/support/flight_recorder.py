"""Flight recorders: which torch has one that records collectives of gloo, and others that tests make up."""

import json
import re
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import Any

import pytest

from workerlib.contract import recorders

FIRST = (2, 11)
"""The first release of torch whose recorder is known to work."""


def _release() -> tuple[int, ...]:
    """Return the release of the installed torch; empty without it."""
    try:
        return tuple(map(int, re.findall(r"\d+", version("torch"))[:2]))
    except PackageNotFoundError:
        return ()


needs_flight_recorder = pytest.mark.skipif(
    _release() < FIRST, reason="this torch has no flight recorder that records gloo"
)


Entries = list[dict[str, Any]]


def entry(operation: str, number: int, *, retired: bool, group: int = 0) -> dict[str, Any]:
    """Return an entry of a recorder, with its keys in torch's order."""
    return {
        "collective_seq_id": number,
        "input_dtypes": ["Float"],
        "input_sizes": [[8]],
        "is_p2p": False,
        "pg_id": group,
        "process_group": ["0", "default_pg"],
        "profiling_name": operation,
        "retired": retired,
        "time_created_ns": number,
    }


class Recorder:
    """A flight recorder as torch has it: the counters of its groups, and its entries, which are dear."""

    def __init__(self, entries: Entries, *, gets_on: bool = False) -> None:
        self.entries = entries
        self.gets_on = gets_on
        self.dumped = 0
        self.held_lock = 0

    def dump(self, whole: bool) -> bytes:
        """Return the counters, or all that there is; the lock of Python is held meanwhile."""
        if whole:
            self.held_lock += 1
            return self.text.encode()
        number = self.entries[-1]["collective_seq_id"] if self.entries else 0
        if self.gets_on:
            self.entries = [*self.entries, entry("gloo:all_reduce", number + 1, retired=False)]
        status = {str(each["pg_id"]): {"last_enqueued_collective": str(number)} for each in self.entries}
        return json.dumps({"pg_status": status}).encode()

    def handle(self, _: object, response: Any) -> None:
        """Give all that there is to torch's server for workers."""
        self.dumped += 1
        response.set_content(self.text, "application/json")

    @property
    def text(self) -> str:
        """Return all that there is."""
        return json.dumps({"entries": self.entries}, separators=(",", ":"), sort_keys=True)


def install(monkeypatch: pytest.MonkeyPatch, **engines: Recorder) -> None:
    """Let this process have a torch with these recorders, by the names of their engines."""
    by_backend: dict[str, dict[str, Recorder]] = {}
    for engine, recorder in engines.items():
        name, words = recorders.RECORDERS[engine]
        by_backend.setdefault(name, {})[words.get("backend", "")] = recorder
    c10d = SimpleNamespace(**{name: partial(_dump, named) for name, named in by_backend.items()})
    handlers = {recorders.HANDLER: engines["gloo"].handle} if "gloo" in engines else {}
    c10d._Request, c10d._Response, c10d._get_handler = object, object, handlers.__getitem__
    monkeypatch.setitem(sys.modules, recorders.C10D, c10d)
    monkeypatch.setattr(recorders, "_earlier_groups", set[tuple[str, str]]())  # another test may have begun a round


def _dump(named: dict[str, Recorder], whole: bool, backend: str = "") -> bytes:
    return named[backend].dump(whole)
