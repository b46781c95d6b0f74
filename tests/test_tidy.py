"""The tree keeps the house style, and the checker of the style finds what breaks it."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from tests.conftest import LONGEST
from tests.support.docstrings import fragments, leaning_sentences, undocumented, wordless_functions
from tests.support.error_classes import blameless_errors
from tests.support.imports import (
    coordinator_imports,
    imports_back_up,
    impure_imports,
    node_imports,
    worker_imports,
)
from tests.support.pages import CELL_MAX, WIDTH_MAX, long_cells, wide_lines
from tests.support.rule import Check, Rule
from tests.support.source import ROOT, Source
from tests.support.state_changes import durable_changes, property_changes, query_changes
from tests.support.tidy import (
    FILE_LINES_MAX,
    FUNCTION_LINES_MAX,
    RULES,
    foreign_places,
    impure_calls,
    long_file,
    long_functions,
    stock_frozen_classes,
    unnamed_modules,
)

BY_CHECK = {rule.findings: rule for rule in RULES}

LATE_TORCH = '''"""Doc."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import torch
def _init():
    from torch import distributed
'''

MOST_OF_WORKERLIB = (
    '"""`agreement` `checkpoints` `elastic` `env` `init` `integrations` `in_place` `keep` `kept_storage` `packets` '
    '`progress` `record` `recorders` `responder` `sampler` `stop` `store`"""'
)

CONTRACT_TORCH = "def f():\n    import torch"

LONG = "def _long():\n" + "    step()\n" * FUNCTION_LINES_MAX

VIOLATIONS = [
    (impure_imports, "coordinatord/core/state/run.py", "import asyncio", 1, "imports asyncio"),
    (impure_imports, "coordinatord/core/state/run.py", "def f():\n    import time", 2, "imports time"),
    (impure_imports, "nodeclient/core/a.py", "from os import path", 1, "imports os.path"),
    (impure_imports, "nodeclient/core/a.py", "import coordinatord.runtime.log", 1, "runtime.log"),
    (impure_imports, "nodeclient/core/a.py", "from ..session import x", 1, "nodeclient.session.x"),
    (impure_imports, "coordinatord/protocol/codec.py", "import logging", 1, "imports logging"),
    (impure_imports, "coordinatord/protocol/exit_codes.py", "import signal", 1, "imports signal"),
    (impure_imports, "coordinatord/core/state/run.py", "import msgpack", 1, "imports msgpack"),
    (impure_calls, "coordinatord/core/state/run.py", "now = clock.monotonic()", 1, "clock.monotonic()"),
    (impure_calls, "nodeclient/core/a.py", "\nx = dice.random()", 2, "calls dice.random()"),
    (impure_calls, "coordinatord/core/state/run.py", "print(1)", 1, "calls print()"),
    (imports_back_up, "coordinatord/core/values/a.py", "from coordinatord.core.state import run", 1, "core.state.run"),
    (imports_back_up, "coordinatord/core/queries/a.py", "import coordinatord.core.transitions.table", 1, "table"),
    (imports_back_up, "coordinatord/core/transitions/a.py", "from coordinatord.core import machine", 1, "core.machine"),
    (imports_back_up, "coordinatord/core/events.py", "from coordinatord.core.state import run", 1, "core.state.run"),
    *(
        (query_changes, "coordinatord/core/queries/a.py", f"def f(run, x):\n    {text}", 2 + text.count("\n"), what)
        for text, what in (
            ("run.x = 1", "changes run.x"),
            ("run.x[1] += 1", "changes run.x[1]"),
            ("run.x.add(1)", "changes run.x"),
            ("del run.x", "changes run.x"),
            ("x.pop()", "changes x"),
            ("y = run.y\n    y.z = 1", "changes y.z"),
            ("y = run.y\n    y.append(1)", "changes y"),
            ("y = run.y or []\n    y.append(1)", "changes y"),
            ("y = run.y\n    y.z.add(1)", "changes y.z"),
            ("for y in run.members.values():\n        y.z = 1", "changes y.z"),
            ("for _, y in list(zip(x, run.y)):\n        y.clear()", "changes y"),
            ("y = A(run)\n    y.run.z = 1", "changes y.run.z"),
            ("setattr(run, 'x', 1)", "changes run"),
            ("object.__setattr__(run.x, 'y', 1)", "changes run.x"),
            ("heappush(run.x, 1)", "changes run.x"),
            ("heapq.heappop(run.x)", "changes run.x"),
            ("run.place(1)", "changes run"),
            ("run.kept.note('n1', ())", "changes run.kept"),
            ("kept = run.kept\n    kept.advance()", "changes kept"),
            ("run.give_up.next()", "changes run.give_up"),
            ("leases.note_heard(x, 0.0, run.policy, 1.0, 2.0)", "changes x"),
            ("Leases().renew_all(run, 1.0, 2.0)", "changes run"),
        )
    ),
    (
        property_changes,
        "coordinatord/core/state/a.py",
        "class A:\n    @property\n    def x(self):\n        self._x = 1",
        4,
        "changes self._x",
    ),
    *(
        (durable_changes, "coordinatord/core/a.py", f"def f(run):\n    {text}", 2 + text.count("\n"), what)
        for text, what in (
            ("run.durable.round = 1", "changes run.durable.round"),
            ("self.cluster.durable.jobs.pop(1)", "changes self.cluster.durable.jobs"),
            ("durable.members[1] = 2", "changes durable.members[1]"),
            ("run.durable.rounds.note(1)", "changes run.durable.rounds"),
            ("run.durable.member('n1').succeeded = True", "succeeded"),
            ("setattr(run.durable, 'round', 1)", "changes run.durable"),
            ("d = run.durable\n    d.round = 1", "changes d.round"),
            ("d, run.x = run.durable, 1\n    d.lost.clear()", "changes d.lost"),
            ("for m in run.durable.members.values():\n        m.succeeded = True", "changes m.succeeded"),
            ("for _, m in sorted(run.durable.members.items()):\n        m.succeeded = True", "changes m.succeeded"),
            ("if m := run.durable.members.get(1):\n        m.succeeded = True", "changes m.succeeded"),
        )
    ),
    (durable_changes, "coordinatord/core/a.py", "durable.round = 1", 1, "changes durable.round"),
    (
        durable_changes,
        "coordinatord/core/a.py",
        "def f(member: DurableMember):\n    member.succeeded = True",
        2,
        "changes member.succeeded",
    ),
    (imports_back_up, "coordinatord/server/driver.py", "from coordinatord.server.http import jobs", 1, "http.jobs"),
    (imports_back_up, "coordinatord/server/sessions/a.py", "import coordinatord.server.page", 1, "server.page"),
    (stock_frozen_classes, "nodeclient/a.py", "@dataclass(frozen=True)\nclass A: ...", 2, "A is made by dataclass"),
    (unnamed_modules, "workerlib/__init__.py", MOST_OF_WORKERLIB, 1, "does not name `gloo`"),
    (coordinator_imports, "coordinatord/cli.py", "import nodeclient", 1, "imports nodeclient"),
    (coordinator_imports, "coordinatord/a/b.py", "from workerlib import env", 1, "workerlib.env"),
    (coordinator_imports, "coordinatord/cli.py", "def f():\n    import torch", 2, "imports torch"),
    (node_imports, "nodeclient/cli.py", "from coordinatord.core import run", 1, "core.run"),
    (node_imports, "nodeclient/cli.py", "from coordinatord import __version__", 1, "__version__"),
    (node_imports, "nodeclient/cli.py", "import workerlib", 1, "imports workerlib"),
    (node_imports, "nodeclient/cli.py", "from workerlib.init import init", 1, "workerlib.init"),
    (node_imports, "nodeclient/cli.py", "def f():\n    import numpy", 2, "imports numpy"),
    (node_imports, "nodeclient/torchrun/a.py", "from coordinatord.core import run", 1, "core.run"),
    (
        node_imports,
        "nodeclient/shell/node.py",
        "from nodeclient.torchrun import log",
        1,
        "nodeclient.torchrun.log",
    ),
    (worker_imports, "workerlib/init.py", "import torch", 1, "imports torch when it is loaded"),
    (worker_imports, "workerlib/init.py", "class A:\n    import torch", 2, "when it is loaded"),
    (worker_imports, "workerlib/env.py", CONTRACT_TORCH, 2, "imports torch"),
    (worker_imports, "workerlib/keep/arena.py", CONTRACT_TORCH, 2, "imports torch"),
    (worker_imports, "workerlib/init.py", "from workerlib.keep.keeper import a", 1, "when it is loaded"),
    (worker_imports, "workerlib/init.py", "from workerlib import kept_storage", 1, "when it is loaded"),
    (worker_imports, "workerlib/env.py", "def f():\n    import msgpack", 2, "imports msgpack"),
    (worker_imports, "workerlib/init.py", "from coordinatord import protocol", 1, "coordinatord.protocol"),
    (blameless_errors, "coordinatord/cli.py", "class AError(Exception): ...", 1, "from Exception"),
    (
        blameless_errors,
        "nodeclient/a.py",
        "def f():\n    class _A(ValueError, X): ...",
        2,
        "from ValueError",
    ),
    (blameless_errors, "nodeclient/a.py", "class A(CoordinatordError): ...", 1, "from CoordinatordError"),
    (worker_imports, "workerlib/init.py", "import lightning", 1, "imports lightning"),
    (worker_imports, "workerlib/init.py", "from workerlib.integrations import a", 1, "workerlib.integrations.a"),
    (worker_imports, "workerlib/integrations/lightning.py", "import transformers", 1, "imports transformers"),
    (long_file, "examples/a.py", "\n" * (FILE_LINES_MAX + 1), FILE_LINES_MAX + 1, "701 lines"),
    (long_functions, "tests/test_a.py", LONG, 1, "_long() has 71 lines"),
    (undocumented, "tests/test_a.py", "x = 1", 1, "the module has no docstring"),
    (undocumented, "coordinatord/a.py", '"""D."""\ndef f(): ...', 2, "f has no docstring"),
    (undocumented, "nodeclient/a.py", '"""D."""\nasync def f(): ...', 2, "f has no docstring"),
    (undocumented, "workerlib/a.py", '"""D."""\nclass A: ...', 2, "A has no docstring"),
    (
        undocumented,
        "workerlib/a.py",
        '"""D."""\nclass A:\n    """D."""\n    def f(self): ...',
        4,
        "f has no docstring",
    ),
    (fragments, "tests/a.py", '"""In a module."""', 1, "begins with 'In'"),
    (fragments, "nodeclient/a.py", 'class A:\n    x: int\n    """In seconds."""', 3, "begins with 'In'"),
    (fragments, "nodeclient/a.py", 'def test_f():\n    """... of it."""', 2, "begins with 'of'"),
    (leaning_sentences, "tests/a.py", '"""A.\n\nNor does it wait."""', 3, "begins with 'Nor'"),
    (leaning_sentences, "tests/a.py", 'x = 1\n"""Seconds. And more."""', 2, "begins with 'And'"),
    (leaning_sentences, "nodeclient/a.py", "x = 1\n# It is so. But not now.", 2, "begins with 'But'"),
    (wordless_functions, "nodeclient/a.py", 'def f():\n    """The nodes."""', 1, "f begins with 'The'"),
    (wordless_functions, "nodeclient/a.py", 'class A:\n    async def f():\n        """`x` is so."""', 2, "'`x`'"),
    (foreign_places, "README.md", "\ncd /" + "root/x", 2, "names /" + "root/"),
    (foreign_places, ".ci/run", "PATH=/" + "work/bin", 1, "names /" + "work/"),
    (foreign_places, "a.toml", "https://pypi" + ".org/simple", 1, "names pypi"),
    (foreign_places, "a.toml", "https://files.pythonhosted" + ".org/x", 1, "pythonhosted"),
    (foreign_places, "Dockerfile", "http://deb.debian" + ".org/x", 1, "names deb"),
    (wide_lines, "docs/a.md", "word " * 25, 1, "125 characters"),
    (long_cells, "docs/a.md", f"| a | {'b' * (CELL_MAX + 1)} |", 1, "241 characters"),
]

HARMLESS = [
    (impure_imports, "coordinatord/core/state/run.py", "from collections.abc import Iterator"),
    (impure_imports, "coordinatord/core/state/run.py", "from coordinatord.protocol.messages import Join"),
    (impure_imports, "coordinatord/protocol/codec.py", "import msgpack"),
    (impure_imports, "coordinatord/protocol/exit_codes.py", "from signal import Signals"),
    (impure_imports, "coordinatord/server/driver.py", "import asyncio"),
    (impure_calls, "coordinatord/core/state/run.py", "deadline = policy.deadline(now)"),
    (imports_back_up, "coordinatord/core/transitions/a.py", "from coordinatord.core.queries import reasons"),
    (imports_back_up, "coordinatord/core/values/a.py", "from coordinatord.core.policy import Policy"),
    (imports_back_up, "coordinatord/core/effects.py", "from coordinatord.core.values import records"),
    *(
        (query_changes, "coordinatord/core/queries/a.py", f"def f(run):\n    {text}")
        for text in (
            "x = []\n    x.append(run)\n    x[0] = 1",
            "x = dict[str, list[int]]()\n    x.setdefault('a', []).append(1)",
            "x = {}\n    for y in x.values():\n        y.sort()",
            "x, y = {}, sorted(run.y)\n    x.update(run.x)\n    y.pop()",
            "x = A(run)\n    x.y = 1",
            "x = next(iter(run.x))",
        )
    ),
    (query_changes, "coordinatord/core/queries/a.py", "class A:\n    def __init__(self): self.x = 1"),
    (property_changes, "coordinatord/core/a.py", "class A:\n    @property\n    def x(self):\n        return self._x"),
    (property_changes, "nodeclient/core/a.py", "class A:\n    def x(self):\n        self._x = 1"),
    *(
        (durable_changes, "coordinatord/core/a.py", f"def f(run):\n    {text}")
        for text in (
            "self.durable = durable\n    self.round = durable.round",
            "for run in live if cluster.durable.drained else ():\n        run.x = 1",
            "member.durable = DurableMember()",
            "x = [*run.durable.members]\n    x.clear()",
        )
    ),
    (durable_changes, "coordinatord/core/transitions/apply.py", "def f(run: DurableRun):\n    run.round = 1"),
    (imports_back_up, "coordinatord/server/driver.py", "from coordinatord.server.counters import Counters"),
    (imports_back_up, "coordinatord/server/http/a.py", "from coordinatord.server.sessions import connections"),
    (
        stock_frozen_classes,
        "nodeclient/a.py",
        "@dataclass(frozen=True, order=True)\nclass A: ...\n@frozen\nclass B: ...",
    ),
    (coordinator_imports, "coordinatord/cli.py", "import coordinatord.core, asyncio"),
    (node_imports, "nodeclient/cli.py", "from coordinatord.protocol import codec"),
    (node_imports, "nodeclient/cli.py", "from coordinatord import protocol, runtime"),
    (node_imports, "nodeclient/cli.py", "from workerlib.env import RANK"),
    (node_imports, "nodeclient/torchrun/a.py", "import torch\nfrom nodeclient.torchrun import b"),
    (worker_imports, "workerlib/init.py", LATE_TORCH),
    (worker_imports, "workerlib/integrations/lightning.py", "from lightning.pytorch import Callback"),
    (worker_imports, "workerlib/init.py", "import os\nfrom workerlib import env"),
    (worker_imports, "workerlib/keep/keeper.py", "import torch\nfrom workerlib.keep import arena"),
    (node_imports, "nodeclient/cli.py", "from workerlib.keep.arena import Arena"),
    (blameless_errors, "nodeclient/a.py", "class AError(OperationalError): ...\nclass B(AError, dict): ..."),
    (blameless_errors, "workerlib/env.py", "class AError(RuntimeError): ..."),
    (long_file, "examples/a.py", "\n" * FILE_LINES_MAX),
    (long_functions, "tests/test_a.py", LONG.replace("    step()\n", "", 1)),
    (undocumented, "tests/test_a.py", '"""D."""\ndef test_f(): ...'),
    (undocumented, "nodeclient/a.py", '"""D."""\ndef _f(): ...\nclass _A:\n    def f(self): ...'),
    (undocumented, "nodeclient/a.py", '"""D."""\n@overload\ndef f(): ...\ndef f():\n    """D."""'),
    (fragments, "nodeclient/a.py", 'x = 1\n"""Seconds."""\ny = f("In a text.")'),
    (leaning_sentences, "nodeclient/a.py", 'x = "Or."\n"""This, or Ordinary."""  # But beside it'),
    (wordless_functions, "nodeclient/a.py", 'def f():\n    """Begin."""\ndef g():\n    """Whether it began."""'),
    (wordless_functions, "nodeclient/a.py", 'class A:\n    @property\n    def f():\n        """The node."""'),
    (wordless_functions, "tests/test_a.py", 'def test_f():\n    """The bug is known."""'),
    (foreign_places, "README.md", "see framework/work/network and https://a.org/work/"),
    (wide_lines, "docs/a.md", "```\n" + "word " * 25 + "\n```"),
    (wide_lines, "docs/a.md", "| " + "word " * 25 + "|"),
    (wide_lines, "docs/a.md", "https://example.org/" + "a" * WIDTH_MAX),
    (long_cells, "docs/a.md", f"| a | `{'b' * CELL_MAX}` b |"),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_tree_keeps_the_rule(rule: Rule, tree: list[Source]) -> None:
    found = [line for source in tree for line in rule.judge(source)]
    assert not found, "\n".join(["", *found, rule.remedy])


@pytest.mark.parametrize(
    "folder",
    [
        "coordinatord/core",
        "coordinatord/protocol",
        "coordinatord/runtime",
        "nodeclient/core",
        "nodeclient/torchrun",
        "workerlib/env.py",
        "workerlib/keep/arena.py",
        "workerlib/keep/channel_messages.py",
    ],
)
def test_the_rules_speak_of_places_that_exist(folder: str, tree: list[Source]) -> None:
    assert any(source.is_python and source.is_in(folder) for source in tree)


def test_the_tests_that_begin_first_exist() -> None:
    for beginning in LONGEST:
        file, _, test = beginning.partition("::")
        assert (ROOT / file).exists(), beginning
        assert not test or f"def {test}(" in (ROOT / file).read_text(), beginning


@pytest.mark.parametrize(("check", "path", "text", "line", "what"), VIOLATIONS)
def test_a_violation_is_found(check: Check, path: str, text: str, line: int, what: str) -> None:
    [found] = BY_CHECK[check].judge(Source(PurePosixPath(path), text))
    assert found.startswith(f"{path}:{line}: ")
    assert what in found


@pytest.mark.parametrize(("check", "path", "text"), HARMLESS)
def test_what_is_allowed_is_not_found(check: Check, path: str, text: str) -> None:
    assert BY_CHECK[check].judge(Source(PurePosixPath(path), text)) == []


def test_every_rule_has_a_violation_that_it_finds() -> None:
    assert {check for check, *_ in VIOLATIONS} == set(BY_CHECK)
