"""A mutant: one small mistake in the source of one module, and how it is planted into a process.

The mistake is never written to the tree. The module is compiled from the changed syntax tree when it is first imported,
in a process that imports everything else as it is. So there are no copies of the tree that could be left behind, and
the tree can be edited meanwhile.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from tests.sim.mutants import pattern

ROOT = Path(__file__).parents[3]


class MisfitError(Exception):
    """A mutant does not fit the source any more, and has to be written anew."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake that a reviewer might miss."""

    name: str
    breaks: str
    """The effect of the mistake, for a person."""
    module: str
    """The dotted name of the module that it is in."""
    place: str
    """The qualified name of the class, function or value that it is in."""
    old: str
    """The source that the mistake replaces: a `pattern` that matches once in its place."""
    new: str
    """The mistake; empty if it is to leave out an element or some statements."""
    plays: str = "small_world"
    """The function that plays the histories which may show it: of `history`, or of another module that it names."""

    @property
    def path(self) -> Path:
        """The file of the module."""
        return ROOT.joinpath(*self.module.split(".")).with_suffix(".py")

    def change(self, source: str) -> ast.Module:
        """Return the module's syntax tree with the mistake. Raises `MisfitError`."""
        tree = ast.parse(source)
        try:
            where = pattern.scope(tree, self.place)
        except LookupError as error:
            raise MisfitError(f"mutant {self.name}: {error} in {self.module}") from None
        found = [
            (spot, new)
            for old, new in pattern.readings(self.old, self.new)
            for spot in pattern.spots(where, old)
            if new or spot.nodes is not None
        ]
        if len(found) != 1:
            text = (
                f"mutant {self.name}: its old source stands {len(found)} times in {self.module}:{self.place}, not once"
            )
            raise MisfitError(text)
        [(spot, new)] = found
        spot.replace(new)
        return tree


def plant(mutant: Mutant) -> None:
    """Make this process import the mutant's module with its mistake. Raises `MisfitError`."""
    if mutant.module in sys.modules:
        raise MisfitError(f"mutant {mutant.name}: {mutant.module} is imported already")
    changed = mutant.change(mutant.path.read_text())
    sys.meta_path.insert(0, _Finder(mutant.module, changed))


class _Finder(MetaPathFinder):
    """Finds one module, with another syntax tree than its file has."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self._module, self._tree = module, tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._tree)
        return spec


class _Loader(SourceFileLoader):
    """Compiles a syntax tree in place of the file's text, and ignores earlier bytecode of the file."""

    def __init__(self, fullname: str, path: str, tree: ast.Module) -> None:
        super().__init__(fullname, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._tree, self.get_filename(fullname))
        return code
