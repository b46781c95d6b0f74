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

COORDINATORD_ROOMS = {
    "commands",
    "config",
    "core",
    "hints",
    "protocol",
    "runtime",
    "security",
    "server",
    "store",
}

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
        ("coordinatord", COORDINATORD_ROOMS | {"cli"}),
        ("nodeclient", NODECLIENT_ROOMS | {"cli"}),
    ],
)
def test_nothing_lies_beside_the_rooms(folder: str, names: set[str], tree: list[Source]) -> None:
    within = [source.path.relative_to(folder) for source in tree if source.is_python and source.is_in(folder)]
    assert {path.parts[0].removesuffix(".py") for path in within} - {"__init__", "__main__"} == names


SMALL_LINES = 60

SMALL_BOUNDARIES = {
    "coordinatord/commands/cut_off": "what ends a turn, apart from what waits for it",
    "coordinatord/commands/offline_replay": "what two subcommands share, so that neither has to know the other",
    "coordinatord/commands/shared_state": "what looks into a store without leading there",
    "coordinatord/commands/step_down": "a subcommand",
    "coordinatord/core/queries/corroboration": "one rule: which two signs prove that a node is gone",
    "coordinatord/core/queries/halting": "one rule: which step is the last",
    "coordinatord/core/queries/kept_reasons": "the words for kept state, which the status has as well",
    "coordinatord/core/queries/kept_view": "a part of a view with a schema of its own",
    "coordinatord/core/queries/reach": "one rule: who is cut off",
    "coordinatord/core/queries/samples": "what charts are made of, apart from what the API shows",
    "coordinatord/core/queries/scale_up_wait": "one rule: what nodes wait for that arrive in a round",
    "coordinatord/core/queries/start_counts": "what views, reasons and actions count alike",
    "coordinatord/core/state/checkpoint_watch": "a fact of one round, apart from all that lives longer",
    "coordinatord/core/state/cluster": "what stands above all runs",
    "coordinatord/core/state/halt_promises": "a fact of one round, apart from all that lives longer",
    "coordinatord/core/state/lateness_watch": "a fact of one round, apart from all that lives longer",
    "coordinatord/core/transitions/kept_reports": "one kind of report",
    "coordinatord/core/transitions/laggards": "one kind of answer, with what follows from it",
    "coordinatord/core/transitions/looks": "the place that knows both askers, so that neither has to know the other",
    "coordinatord/core/values/buddies": "one pure function, which everybody can foresee",
    "coordinatord/core/values/health": "what states, views and metrics have in common",
    "coordinatord/core/values/persist_plan": "one pure function",
    "coordinatord/core/values/reason": "what records and states have in common",
    "coordinatord/core/values/rest": "one pure function",
    "coordinatord/core/values/section_limits": "a sum over nodes that knows no run",
    "coordinatord/core/values/stack_source": "what effects and queries have in common",
    "coordinatord/hints/closed_connection": "one rule: which failure may be the consequence of another",
    "coordinatord/hints/hang": "advice about hangs, which is found by their kind and not by a rule",
    "coordinatord/hints/match": "what calls the tables of causes",
    "coordinatord/hints/rule": "what the tables of causes have in common",
    "coordinatord/runtime/deadline_timer": "a resource of the event loop",
    "coordinatord/runtime/early_signals": "what must import nothing else",
    "coordinatord/runtime/local_time": "a source of the system's: the time zone",
    "coordinatord/runtime/process_limits": "a resource of the system's",
    "coordinatord/runtime/settings/setting_values": "how values are read, apart from where they come from",
    "coordinatord/runtime/tcp_options": "a resource of the system's: a socket",
    "coordinatord/server/http/reader_count": "what four resources of the API have in common",
    "coordinatord/server/http/request_body": "a duty towards callers: bounds in length and time",
    "coordinatord/server/paced_effects": "turns of the event loop, apart from what happens in them",
    "coordinatord/server/reads/change_signal": "what wakes readers, whom it does not know",
    "coordinatord/server/reads/job_iteration": "turns of the event loop, apart from who reads in them",
    "coordinatord/server/reads/rounds_reader": "a cache in front of the store",
    "coordinatord/server/sessions/join_pace": "pure, and apart from what refuses",
    "coordinatord/server/sessions/revocation": "a task of its own, which ends what others serve",
    "nodeclient/access/endpoint": "what command lines read and connections need: neither has to know the other",
    "nodeclient/config/command_line": "what `parse` and the modules that it imports have in common",
    "nodeclient/config/crash_replay": "a command line that needs nothing of a node",
    "nodeclient/core/agent_settings": "what the machine is told of the user's settings",
    "nodeclient/core/departure": "a small pure machine of its own, beside the agent",
    "nodeclient/core/disk_retention": "a rule, apart from the disk that it is about",
    "nodeclient/core/endings": "what a node concludes by itself, apart from the machine that asks",
    "nodeclient/core/kept_goals": "a small pure machine of its own, beside the agent",
    "nodeclient/core/kept_groups": "pure, and apart from the memory that it describes",
    "nodeclient/core/lingering": "a small pure machine of its own, beside the agent",
    "nodeclient/core/worker_departures": "pure: what the ends of workers and their departures have in common",
    "nodeclient/diagnosis/kernel_log": "a source of the system's: /dev/kmsg",
    "nodeclient/forkserver/hook/sitecustomize": "Python imports it by this name",
    "nodeclient/host/control_groups": "a source of the system's, which `cpus` and `memory` read",
    "nodeclient/host/ports": "a resource of the system's: a port that stays reserved",
    "nodeclient/keep/resources": "what the modules of the room share, so that none has to know another",
    "nodeclient/keep/rate_limit": "pure, and apart from what has to wait",
    "nodeclient/operate/admin_commands": "a group of commands",
    "nodeclient/operate/answering": "threads of its own: whom to ask, apart from what is asked",
    "nodeclient/operate/cli": "what the command line calls",
    "nodeclient/operate/dumped_hang": "a command",
    "nodeclient/operate/formatting": "pure, and used by all commands",
    "nodeclient/operate/page_link": "a command",
    "nodeclient/operate/report": "a command",
    "nodeclient/operate/request_errors": "errors, which import nothing",
    "nodeclient/output/line_prefix": "pure, and apart from what writes",
    "nodeclient/output/terminal": "a resource that threads share: this process's own stderr",
    "nodeclient/persist/persist_settings": "all that a command line which is only read needs of the room",
    "nodeclient/persist/unusable_steps": "pure, and apart from what reads",
    "nodeclient/shell/connection_errors": "texts, and apart from what carries",
    "nodeclient/shell/stop_extension": "pure, and apart from what carries",
    "nodeclient/torchrun/log": "a logger, which torch has to find among its own",
    "nodeclient/workers/guard_process": "a process of its own, which must import little",
    "nodeclient/workers/orphans": "a duty towards the kernel: as a subreaper",
    "workerlib/agreement": "a collective, apart from what each worker notices by itself",
    "workerlib/keep/agent_channel": "a resource: the connection to the node",
    "workerlib/keep/checkpoint_parts": "what stands between this room and `torch.distributed.checkpoint`",
    "workerlib/keep/keeping": "what is loaded when a script keeps something, and not before",
    "workerlib/keep/kept_errors": "errors, which import nothing",
    "workerlib/keep/step_commits": "what is known of a step before any of it is written",
}
"""Modules that are short and stay alone, and the boundary that each of them is."""


def test_a_short_module_is_a_boundary(tree: list[Source]) -> None:
    """Each module of the protocol is one: a part of the contract of both programs."""
    own = [source for source in tree if source.is_python and source.is_in("coordinatord", "nodeclient", "workerlib")]
    lines = {
        str(source.path.with_suffix("")): len(source.text.splitlines())
        for source in own
        if not source.path.stem.startswith("__") and not source.is_in("coordinatord/protocol")
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
