"""The tree keeps the house style, and the checker of the style finds what breaks it."""

from pathlib import PurePosixPath

import pytest

from tests.conftest import LONGEST
from tests.support.imports import (
    coordinator_imports,
    imports_apart,
    imports_back_up,
    impure_imports,
    node_imports,
    worker_imports,
)
from tests.support.pages import CELL_MAX, long_cells, wide_lines
from tests.support.source import ROOT, Check, Source
from tests.support.tidy import (
    FILE_LINES_MAX,
    FUNCTION_LINES_MAX,
    RULES,
    blameless_errors,
    foreign_places,
    fragments,
    impure_calls,
    leaning_sentences,
    long_file,
    long_functions,
    stock_frozen_classes,
    unnamed_modules,
    wordless_functions,
)

BY_CHECK = {rule.findings: rule for rule in RULES}


MOST_OF_WORKERLIB = (
    '"""`agent_channel` `contract` `in_place` `init` `integrations` `keeping` `micro_batches` `pair_test` `progress` '
    '`record` `responder` `reuse` `sampler` `stop` `store`"""'
)

CONTRACT_TORCH = "def f():\n    import torch"

LONG = "def _long():\n" + "    step()\n" * FUNCTION_LINES_MAX

VIOLATIONS = [
    (impure_imports, "coordinatord/core/rounds/state/run.py", "import asyncio", 1, "imports asyncio"),
    (impure_imports, "nodeclient/core/a.py", "from ..session import x", 1, "nodeclient.session.x"),
    (impure_imports, "coordinatord/protocol/exit_codes.py", "import signal", 1, "imports signal"),
    (impure_imports, "coordinatord/core/rounds/state/run.py", "import msgpack", 1, "imports msgpack"),
    (impure_calls, "coordinatord/core/rounds/state/run.py", "now = clock.monotonic()", 1, "clock.monotonic()"),
    (impure_calls, "coordinatord/core/rounds/state/run.py", "print(1)", 1, "calls print()"),
    (
        imports_back_up,
        "coordinatord/core/rounds/values/a.py",
        "from coordinatord.core.rounds.state import run",
        1,
        "rounds.state.run",
    ),
    (imports_back_up, "coordinatord/server/driver.py", "from coordinatord.server.http import jobs", 1, "http.jobs"),
    (imports_apart, "coordinatord/core/rounds/policy.py", "from coordinatord.core.watching import a", 1, "watching.a"),
    (imports_apart, "coordinatord/core/watching/a.py", "from coordinatord.core.shown import a", 1, "shown.a"),
    (imports_apart, "coordinatord/core/rounds/policy.py", "from coordinatord.core import admin", 1, "core.admin"),
    (imports_apart, "coordinatord/core/journal.py", "from coordinatord.core.shown import a", 1, "shown.a"),
    (stock_frozen_classes, "nodeclient/a.py", "@dataclass(frozen=True)\nclass A: ...", 2, "A is made by dataclass"),
    (unnamed_modules, "workerlib/__init__.py", MOST_OF_WORKERLIB, 1, "does not name `gloo`"),
    (coordinator_imports, "coordinatord/cli.py", "import nodeclient", 1, "imports nodeclient"),
    (coordinator_imports, "coordinatord/cli.py", "def f():\n    import torch", 2, "imports torch"),
    (node_imports, "nodeclient/cli.py", "from coordinatord.core import run", 1, "core.run"),
    (node_imports, "nodeclient/cli.py", "from workerlib.init import init", 1, "workerlib.init"),
    (node_imports, "nodeclient/cli.py", "def f():\n    import numpy", 2, "imports numpy"),
    (node_imports, "nodeclient/shell/node.py", "from nodeclient.torchrun import log", 1, "nodeclient.torchrun.log"),
    (worker_imports, "workerlib/init.py", "import torch", 1, "imports torch when it is loaded"),
    (worker_imports, "workerlib/contract/env.py", CONTRACT_TORCH, 2, "imports torch"),
    (worker_imports, "workerlib/contract/arena.py", CONTRACT_TORCH, 2, "imports torch"),
    (worker_imports, "workerlib/init.py", "from workerlib.keeping.keeper import a", 1, "when it is loaded"),
    (worker_imports, "workerlib/contract/env.py", "def f():\n    import msgpack", 2, "imports msgpack"),
    (blameless_errors, "coordinatord/cli.py", "class AError(Exception): ...", 1, "from Exception"),
    (blameless_errors, "nodeclient/a.py", "def f():\n    class _A(ValueError, X): ...", 2, "from ValueError"),
    (worker_imports, "workerlib/init.py", "from workerlib.integrations import a", 1, "workerlib.integrations.a"),
    (worker_imports, "workerlib/integrations/lightning.py", "import transformers", 1, "imports transformers"),
    (long_file, "examples/a.py", "\n" * (FILE_LINES_MAX + 1), FILE_LINES_MAX + 1, "701 lines"),
    (long_functions, "tests/test_a.py", LONG, 1, "_long() has 71 lines"),
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
    (wide_lines, "docs/a.md", "word " * 25, 1, "125 characters"),
    (long_cells, "docs/a.md", f"| a | {'b' * (CELL_MAX + 1)} |", 1, "241 characters"),
]


def test_the_tree_keeps_the_rules(tree: list[Source]) -> None:
    """All rules are one test: each process that runs one of them parses the tree."""
    found = [f"{line}. {rule.remedy}" for rule in RULES for source in tree for line in rule.judge(source)]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize(
    "folder",
    [
        "coordinatord/core",
        "coordinatord/protocol",
        "coordinatord/runtime",
        "nodeclient/core",
        "nodeclient/torchrun",
        "workerlib/contract/env.py",
        "workerlib/contract/arena.py",
        "workerlib/contract/channel_messages.py",
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


def test_every_rule_has_a_violation_that_it_finds() -> None:
    assert {check for check, *_ in VIOLATIONS} == set(BY_CHECK)
