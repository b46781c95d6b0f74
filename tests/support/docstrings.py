"""Finds docstrings that begin as no sentence does.

A docstring that begins with a preposition ("Of each node, when it was heard.") or a function's that begins with a noun
("The nodes that wait.") is a fragment, and a stranger reads it twice.
"""

import ast
import re
from collections.abc import Iterator

from tests.support.source import FunctionNode, Source

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
