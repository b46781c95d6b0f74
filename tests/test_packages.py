"""Everything lies in its package and has a name of its own."""

import ast
from collections import Counter
from itertools import chain

import pytest

from tests.support.imports import KERNEL_EDGES, KERNEL_FLOORS, SERVER_FLOORS, TOP, WINGS, cycle_among, neighbours
from tests.support.source import Source

PACKAGES = {("coordinatord",), ("nodeclient",), ("workerlib",)}


def test_the_folders_of_tests_mirror_the_packages(tree: list[Source]) -> None:
    tests = {source.path.parent for source in tree if source.is_test and source.path.name.startswith("test_")}
    folders = {folder.relative_to("tests") for folder in tests}
    packages = {source.path.parent for source in tree if source.is_python}
    assert {folder for folder in folders if folder.parts[:1] in PACKAGES} - packages == set()


MIRRORS = {"cli", "effects", "events", "table", "Effect", "Event", "Tick"}
"""The modules and classes that the two programs have each for itself, and named alike on purpose."""


def test_no_module_and_no_class_has_the_name_of_another(tree: list[Source]) -> None:
    own = [source for source in tree if source.is_python and source.is_in("coordinatord", "nodeclient", "workerlib")]
    modules = Counter(source.path.stem for source in own if not source.path.stem.startswith("__"))
    classes = Counter(
        node.name.lstrip("_") for source in own for node in source.tree.body if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in (modules + classes).items() if count > 1} == MIRRORS


CORE = {"rounds", *WINGS, "shown", *TOP}

COORDINATORD_PACKAGES = {"commands", "config", "core", "hints", "protocol", "runtime", "security", "server", "store"}

NODECLIENT_PACKAGES = {
    "access",
    "config",
    "core",
    "diagnosis",
    "forkserver",
    "host",
    "keeping",
    "operate",
    "output",
    "remote",
    "shell",
    "torchrun",
    "workers",
}


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("coordinatord/core", CORE),
        ("coordinatord/core/rounds", {*chain(*KERNEL_FLOORS), *KERNEL_EDGES}),
        ("coordinatord/server", {*chain(*SERVER_FLOORS)}),
        ("coordinatord", COORDINATORD_PACKAGES | {"cli"}),
        ("nodeclient", NODECLIENT_PACKAGES | {"cli"}),
    ],
)
def test_nothing_lies_beside_the_packages(folder: str, names: set[str], tree: list[Source]) -> None:
    within = [source.path.relative_to(folder) for source in tree if source.is_python and source.is_in(folder)]
    assert {path.parts[0].removesuffix(".py") for path in within} - {"__init__", "__main__"} == names


FIELDS_MAX = 12
"""A class with more is several objects in one. Records may have more, and so may the durable state that follows from
them (`durable.py`): they are lists of facts."""

MANY_FIELDS = {
    "Run": "it is the sum of its parts: records, members, arrivals, evidence, progress and three wings",
    "Round": "it is a record that is filled in while the round goes on",
}
"""The classes above that, and why each is one object."""


def test_a_class_that_is_no_record_has_few_fields(tree: list[Source]) -> None:
    many = {
        node.name
        for source in tree
        if source.is_python and source.is_in("coordinatord", "nodeclient", "workerlib")
        if not source.is_in("coordinatord/protocol") and source.path.name != "durable.py"
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and len(fields_in(node)) > FIELDS_MAX
    }
    assert many == MANY_FIELDS.keys()


def fields_in(node: ast.ClassDef) -> set[str]:
    """Return the fields of a class: those of a dataclass, and what its methods set; none of a record."""
    decorators = " ".join(map(ast.unparse, node.decorator_list))
    if "frozen" in decorators or "frozen" in {keyword.arg for keyword in node.keywords}:
        return set()
    declared = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    set_by_methods = {
        each.attr
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        for each in ast.walk(method)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self"
    }
    return set_by_methods | (declared if "dataclass" in decorators else set())


def test_no_modules_and_no_packages_import_each_other_in_a_circle(tree: list[Source]) -> None:
    own = [source for source in tree if source.is_in("coordinatord", "nodeclient", "workerlib")]
    circles = {folder: cycle_among(imports) for folder, imports in neighbours(own).items()}
    assert {folder: circle for folder, circle in circles.items() if circle} == {}
