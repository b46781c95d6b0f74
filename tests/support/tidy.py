"""The house style: all its rules, each of which takes one file of the tree and finds what breaks it.

Ruff and mypy check what they can. Here is the rest: what a pure module may call, how long things may be, how docstrings
begin, and what must not leave the machine of its author. The rules about imports and pages are checked in `imports` and
`pages`.

A docstring that begins with a preposition ("Of each node, when it was heard.") or a function's that begins with a noun
("The nodes that wait.") is a fragment, and a stranger reads it twice.
"""

import ast
import builtins
import re
from collections.abc import Callable, Iterator

from tests.support.imports import (
    APART,
    FLOORS,
    PURE_PACKAGES,
    coordinator_imports,
    imports_apart,
    imports_back_up,
    impure_imports,
    node_imports,
    worker_imports,
)
from tests.support.pages import CELL_MAX, WIDTH_MAX, is_page, long_cells, wide_lines
from tests.support.source import ROOT, Finding, FunctionNode, Rule, Source

PREPOSITIONS = re.compile(
    "about|above|after|against|among|around|as|at|before|behind|below|beneath|beside|between|beyond|by|during|for|from|in"
    "|inside|into|like|of|off|on|onto|out|outside|over|per|since|through|to|toward|towards|under|until|upon|via|with"
    "|within|without"
)

CONJUNCTION = re.compile(r"(?:^|[.?!:]\s+)(And|But|Nor|Or)\b")
"""A sentence that leans on the one before it, at the beginning of a text or within one."""

NO_VERBS = re.compile(
    "|a|all|an|any|both|each|every|how|if|it|its|many|most|must|names|nobody|none|nothing|one|only|raises|returns|says|so"
    "|some|such|that|the|their|there|these|they|this|those|two|we|what|when|where|which|who|whose|why|you|your"
)
"""Words that begin no request: articles, pronouns, conjunctions, verbs in the third person, and no word at all."""

STATEMENTS = ("coordinatord/core/keeping/table.py", "coordinatord/core/rounds/queries/conditions.py")
"""Modules whose conditions are statements about a run: the docstring is the statement."""


def fragments(source: Source) -> Iterator[tuple[int, str]]:
    """Find docstrings, of attributes too, that begin with a preposition."""
    for line, text in _docstrings(source.tree):
        if PREPOSITIONS.fullmatch(_first_word(text).lower()):
            yield line, f"a docstring begins with {_first_word(text)!r}"


def leaning_sentences(source: Source) -> Iterator[tuple[int, str]]:
    """Find sentences of docstrings and comments that begin with a conjunction, as the second half of another one."""
    for line, text in _docstrings(source.tree):
        for found in CONJUNCTION.finditer(text):
            yield line + text.count("\n", 0, found.start(1)), f"a sentence begins with {found[1]!r}"
    for line, text in enumerate(source.text.splitlines(), 1):
        comment = text.strip()
        begun = CONJUNCTION.search(comment.lstrip("# ")) if comment.startswith("#") else None
        if begun is not None:
            yield line, f"a sentence begins with {begun[1]!r}"


def wordless_functions(source: Source) -> Iterator[tuple[int, str]]:
    """Find functions whose docstring does not begin with what they do; properties and tests are named like things."""
    if source.is_in(*STATEMENTS):
        return
    for node in source.definitions:
        if not isinstance(node, FunctionNode) or node.name.startswith("test_") or _is_decorated(node, "property"):
            continue
        text = ast.get_docstring(node)
        if text is not None and NO_VERBS.fullmatch(_first_word(text).lower()):
            yield node.lineno, f"the docstring of {node.name} begins with {text.split()[0]!r}"


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Walk through the strings that are statements of their own."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def _first_word(text: str) -> str:
    """Return the word that a text begins with; nothing if it begins with a name in backquotes or a number."""
    found = re.match(r"(?:\.\.\.)?\s*([A-Za-z]+)(?!\w|\.\w)", text)
    return found[1] if found else ""


def _is_decorated(node: FunctionNode, name: str) -> bool:
    """Return whether a function has a decorator of that name, such as `cached_property`."""
    return any(ast.unparse(decorator).endswith(name) for decorator in node.decorator_list)


_EXEMPT = ("coordinatord/protocol/errors.py", "nodeclient/forkserver/hook")
"""Where the branches are made; and what runs in the interpreters of workers, which may not have this package."""


def belongs_to_a_branch(source: Source) -> bool:
    """Whether the exception classes of a file have to be of one of the branches of `coordinatord.protocol.errors`."""
    return source.is_python and source.is_in("coordinatord", "nodeclient") and not source.is_in(*_EXEMPT)


def blameless_errors(source: Source) -> Iterator[tuple[int, str]]:
    """Find exception classes that are under none of the branches."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for base in map(ast.unparse, node.bases):
            if base == "CoordinatordError" or _is_error_of_python(base):
                yield node.lineno, f"{node.name} is derived from {base}"


def _is_error_of_python(name: str) -> bool:
    found = getattr(builtins, name, None)
    return isinstance(found, type) and issubclass(found, BaseException)


FILE_LINES_MAX = 700
"""A guard against a file with two purposes, not a target: split by purpose, never by length."""

FUNCTION_LINES_MAX = 70
"""A screen; the limit in TigerBeetle's style guide."""

IMPURE_BUILTINS = frozenset({"__import__", "breakpoint", "eval", "exec", "hash", "id", "input", "open", "print"})
"""`hash` and `id` differ from one process to the next, and a replay must not."""

IMPURE_METHODS = frozenset(
    {
        "choice",
        "getrandbits",
        "monotonic",
        "monotonic_ns",
        "now",
        "perf_counter",
        "randbytes",
        "randint",
        "random",
        "randrange",
        "sample",
        "shuffle",
        "sleep",
        "time",
        "time_ns",
        "today",
        "uniform",
        "utcnow",
    }
)
"""The names under which clocks and dice are handed around, as in `loop.time()` or `dice.random()`."""

FOREIGN = re.compile(r"(?<![\w.}-])/(?:work|root)/|pypi\.org|files\.pythonhosted\.org|deb\.debian\.org")
"""Folders and registries that exist, or can be reached, on one machine and not on another."""


def impure_calls(source: Source) -> Iterator[Finding]:
    """Find calls that ask for the time, for chance or for the outside, under whatever object."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                yield node.lineno, f"calls {name}()"
            case ast.Call(func=ast.Attribute(attr=name)) if name in IMPURE_METHODS:
                yield node.lineno, f"calls {ast.unparse(node.func)}()"


def stock_frozen_classes(source: Source) -> Iterator[Finding]:
    """Find frozen dataclasses of the standard library: a `Struct` is made in less time."""
    for node in source.definitions:
        for decorator in node.decorator_list:
            if "frozen" in {keyword.arg for keyword in getattr(decorator, "keywords", ())}:
                yield node.lineno, f"{node.name} is made by {ast.unparse(decorator)}"


def unnamed_modules(source: Source) -> Iterator[Finding]:
    """Find modules and packages that the docstring of the package above them does not name."""
    named = ast.get_docstring(source.tree) or ""
    folder = ROOT / source.path.parent
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    for module in sorted(modules - {"__init__", "__main__"}):
        if f"`{module}`" not in named:
            yield 1, f"the docstring does not name `{module}`"


def long_file(source: Source) -> Iterator[Finding]:
    """Find the line at which a file becomes too long."""
    lines = len(source.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield FILE_LINES_MAX + 1, f"the file has {lines} lines"


def long_functions(source: Source) -> Iterator[Finding]:
    """Find functions that are too long, from `def` to their last line."""
    for node in source.definitions:
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if isinstance(node, FunctionNode) and lines > FUNCTION_LINES_MAX:
            yield node.lineno, f"{node.name}() has {lines} lines"


def foreign_places(source: Source) -> Iterator[Finding]:
    """Find names of places that others do not have."""
    for number, line in enumerate(source.text.splitlines(), start=1):
        for found in FOREIGN.finditer(line):
            yield number, f"names {found.group()}"


def _in_pure_package(source: Source) -> bool:
    return source.is_python and source.is_in(*PURE_PACKAGES)


def _in(folder: str) -> Callable[[Source], bool]:
    return lambda source: source.is_python and source.is_in(folder)


RULES = (
    Rule(
        "pure packages import nothing that does IO",
        _in_pure_package,
        impure_imports,
        "Take what you need as an argument or return it as an effect; a module without IO, clock"
        " and chance may join PURE_STDLIB in tests/support/imports.py.",
    ),
    Rule(
        "pure packages ask for no time and no chance",
        _in_pure_package,
        impure_calls,
        "Take `now`, or what was drawn, as an argument: the shell has the clock and the dice.",
    ),
    Rule(
        "no import in coordinatord/core or coordinatord/server runs back up",
        lambda source: source.is_python and source.is_in(*FLOORS),
        imports_back_up,
        "Move what both floors need down, or have the lower one given a handler: see `watchers` in"
        " coordinatord/server/driver.py.",
    ),
    Rule(
        "the kernel imports no wing, no wing another one, and nothing in the core what is shown",
        lambda source: source.is_python and source.is_in(*APART),
        imports_apart,
        "Give the wing a word in coordinatord/core/rounds/state/wings.py, or move what both need into the kernel. What"
        " decides must not depend on what is shown.",
    ),
    Rule(
        "frozen classes of coordinatord and nodeclient are structs",
        lambda source: source.is_python and source.is_in("coordinatord", "nodeclient"),
        stock_frozen_classes,
        "Derive it from msgspec's `Struct` with frozen=True: the standard library takes 0.6 ms for each class.",
    ),
    Rule(
        "the docstring of a package names all of its modules",
        lambda source: source.path.name == "__init__.py" and source.is_in("coordinatord", "nodeclient", "workerlib"),
        unnamed_modules,
        "Say in the package's docstring what the module is for, with its name in backquotes.",
    ),
    Rule(
        "coordinatord knows neither nodeclient nor workerlib nor torch",
        _in("coordinatord"),
        coordinator_imports,
        "What both sides share belongs in coordinatord/protocol or coordinatord/runtime.",
    ),
    Rule(
        "nodeclient knows of the other packages only what they share",
        _in("nodeclient"),
        node_imports,
        "Import from coordinatord.protocol, coordinatord.hints, coordinatord.runtime or workerlib.contract; torch takes"
        " seconds to import and belongs in the worker, or in nodeclient/torchrun, which nothing else imports.",
    ),
    Rule(
        "workerlib needs nothing but torch, and that late",
        _in("workerlib"),
        worker_imports,
        "Import torch inside the function that uses it, never in workerlib/contract, and nothing else that is not in"
        " the standard library; what a library needs goes into the module of workerlib/integrations of its name.",
    ),
    Rule(
        "every exception class is an OperationalError or an InternalError",
        belongs_to_a_branch,
        blameless_errors,
        "Say whose fault it is: a user's, a peer's and the system's are operational, all else is a bug. See"
        " coordinatord/protocol/errors.py.",
    ),
    Rule(
        f"a file has at most {FILE_LINES_MAX} lines",
        lambda source: source.is_python,
        long_file,
        "Split it by purpose, and say in each docstring what does not belong there.",
    ),
    Rule(
        f"a function has at most {FUNCTION_LINES_MAX} lines",
        lambda source: source.is_python,
        long_functions,
        "Give its parts names.",
    ),
    Rule(
        "no docstring is a fragment that begins with a preposition",
        lambda source: source.is_python,
        fragments,
        'Begin with the subject: "Node ids, by job.", and not "By job: node ids."',
    ),
    Rule(
        "no sentence begins with a conjunction",
        lambda source: source.is_python,
        leaning_sentences,
        'Say who or what: "It does not wait either", and not "Nor does it wait".',
    ),
    Rule(
        "the docstring of a function begins with a verb",
        lambda source: source.is_python,
        wordless_functions,
        'Say what it does, as an order: "Return the nodes that wait.", and not "The nodes that wait."',
    ),
    Rule(
        "no file names a place that only its author has",
        lambda _: True,
        foreign_places,
        "Take the path from a setting or from the file's own place, and leave registries to pip.",
    ),
    Rule(
        f"a line of a page has at most {WIDTH_MAX} characters",
        is_page,
        wide_lines,
        "Fold it; code blocks, rows of tables and single long words may be wider.",
    ),
    Rule(
        f"a cell of a page's table has at most {CELL_MAX} characters of prose",
        is_page,
        long_cells,
        "Write the rest below the table: a row cannot be folded.",
    ),
)
