"""Everything lies in its room and has a name of its own."""

from __future__ import annotations

import ast
from collections import Counter
from itertools import chain
from pathlib import PurePosixPath

import pytest

from tests.support.imports import CORE_EDGES, CORE_FLOORS, SERVER_FLOORS, cycle_among, neighbours
from tests.support.source import Source

PACKAGES = {("coordinatord",), ("nodeclient",), ("workerlib",)}


def test_the_folders_of_tests_mirror_the_rooms(tree: list[Source]) -> None:
    tests = {source.path.parent for source in tree if source.is_test and source.path.name.startswith("test_")}
    folders = {folder.relative_to("tests") for folder in tests}
    rooms = {source.path.parent for source in tree if source.is_python}
    assert {folder for folder in folders if folder.parts[:1] in PACKAGES} - rooms == set()


MIRRORS = {"cli", "effects", "events", "table", "Tick"}
"""The modules and classes that the two programs have each for itself, and named alike on purpose."""


def test_no_module_and_no_class_has_the_name_of_another(tree: list[Source]) -> None:
    own = [source for source in tree if source.is_python and source.is_in("coordinatord", "nodeclient", "workerlib")]
    modules = Counter(source.path.stem for source in own if not source.path.stem.startswith("__"))
    classes = Counter(
        node.name.lstrip("_") for source in own for node in source.tree.body if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in (modules + classes).items() if count > 1} == MIRRORS


CORE = {*chain(*CORE_FLOORS), *CORE_EDGES}

NODECLIENT_ROOMS = {
    "access",
    "config",
    "core",
    "diagnosis",
    "forkserver",
    "host",
    "keep",
    "operate",
    "output",
    "parts",
    "persist",
    "shell",
    "torchrun",
    "workers",
}


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("coordinatord/core", CORE),
        ("coordinatord/server", {*chain(*SERVER_FLOORS)}),
        ("nodeclient", NODECLIENT_ROOMS | {"cli"}),
    ],
)
def test_nothing_lies_beside_the_rooms(folder: str, names: set[str], tree: list[Source]) -> None:
    within = [source.path.relative_to(folder) for source in tree if source.is_python and source.is_in(folder)]
    assert {path.parts[0].removesuffix(".py") for path in within} - {"__init__", "__main__"} == names


SMALL_LINES = 60

SMALL_BOUNDARIES = {
    "access/endpoint": "what command lines read and connections need: neither has to know the other",
    "config/command_line": "what `parse` and the modules that it imports have in common",
    "config/crash_replay": "a command line that needs nothing of a node",
    "core/agent_settings": "what the machine is told of the user's settings",
    "core/departure": "a small pure machine of its own, beside the agent",
    "core/disk_retention": "a rule, apart from the disk that it is about",
    "core/endings": "what a node concludes by itself, apart from the machine that asks",
    "core/kept_goals": "a small pure machine of its own, beside the agent",
    "core/kept_groups": "pure, and apart from the memory that it describes",
    "core/lingering": "a small pure machine of its own, beside the agent",
    "core/worker_departures": "pure: what the ends of workers and their departures have in common",
    "diagnosis/kernel_log": "a source of the system's: /dev/kmsg",
    "forkserver/hook/sitecustomize": "Python imports it by this name",
    "host/control_groups": "a source of the system's, which `cpus` and `memory` read",
    "host/ports": "a resource of the system's: a port that stays reserved",
    "keep/means": "what the modules of the room share, so that none has to know another",
    "keep/rate_limit": "pure, and apart from what has to wait",
    "operate/admin_commands": "a group of commands",
    "operate/answering": "threads of its own: whom to ask, apart from what is asked",
    "operate/cli": "what the command line calls",
    "operate/formatting": "pure, and used by all commands",
    "operate/page_link": "a command",
    "operate/report": "a command",
    "operate/request_errors": "errors, which import nothing",
    "output/line_prefix": "pure, and apart from what writes",
    "output/terminal": "a resource that threads share: this process's own stderr",
    "persist/persist_settings": "all that a command line which is only read needs of the room",
    "persist/unusable_steps": "pure, and apart from what reads",
    "shell/stop_extension": "pure, and apart from what carries",
    "torchrun/log": "a logger, which torch has to find among its own",
    "workers/guard_process": "a process of its own, which must import little",
    "workers/orphans": "a duty towards the kernel: as a subreaper",
}
"""Modules of nodeclient that are short and stay alone, and the boundary that each of them is."""


def test_a_short_module_of_nodeclient_is_a_boundary(tree: list[Source]) -> None:
    own = [
        source
        for source in tree
        if source.is_python and source.is_in("nodeclient") and not source.path.stem.startswith("__")
    ]
    lines = {
        str(source.path.relative_to("nodeclient").with_suffix("")): len(source.text.splitlines()) for source in own
    }
    assert {name for name, number in lines.items() if number < SMALL_LINES} <= SMALL_BOUNDARIES.keys() <= lines.keys()


def test_no_modules_and_no_rooms_import_each_other_in_a_circle(tree: list[Source]) -> None:
    own = [source for source in tree if source.is_in("coordinatord", "nodeclient", "workerlib")]
    circles = {folder: cycle_among(imports) for folder, imports in neighbours(own).items()}
    assert {folder: circle for folder, circle in circles.items() if circle} == {}


def test_a_circle_is_found_at_any_depth() -> None:
    files = {
        "a/rooms/first/x.py": "from a.rooms import second",
        "a/rooms/second/__init__.py": "def f():\n    from a.rooms.third import y",
        "a/rooms/third.py": "import a.rooms.first.x",
        "a/rooms/fourth.py": "from a.rooms import first, second, third\nimport b",
        "b.py": "import a.rooms.fourth",
    }
    found = neighbours([Source(PurePosixPath(path), text) for path, text in files.items()])
    assert set(found) == {"a/rooms"}
    assert set(cycle_among(found["a/rooms"])) == {"first", "second", "third"}
    assert cycle_among({"fourth": ["first", "second"], "second": ["first"]}) == []
