"""The checker is checked, in short: every mutant fits the source, and some die quickly; `make mutants` does all."""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import subprocess
import symtable
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.sim.mutants import seeds
from tests.sim.mutants.__main__ import SCORE_MIN, UNCHANGED, is_enough, main, summary
from tests.sim.mutants.catalogue import MUTANTS
from tests.sim.mutants.hunt import Death, Fate
from tests.sim.mutants.mutant import MisfitError, Mutant, plant
from tests.support.programs import TIMEOUT_S

QUICK = ("rank-given-twice", "budget-overdrawn", "speaks-while-writing", "no-grace-after-start", "node-leaves-workers")
"""Found within the first few seeds."""

VERDICT = next(mutant for mutant in MUTANTS if mutant.module == "coordinatord.core.rounds.values.root_cause")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_source_in_one_place_and_is_python(mutant: Mutant) -> None:
    changed = mutant.change(mutant.path.read_text())
    assert mutant.old != mutant.new
    compile(changed, str(mutant.path), "exec", dont_inherit=True)
    assert not unknown_names(ast.unparse(changed))  # a `NameError` would count as a discovery


def unknown_names(source: str) -> set[str]:
    """Return the global names that a module reads, and neither binds nor finds among the builtins."""
    module = symtable.symtable(source, "", "exec")
    bound = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    found, tables = set[str](), [module]
    while tables:
        table = tables.pop()
        found |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
        tables += table.get_children()
    return found - bound - vars(builtins).keys() - {"__file__", "__name__"}


def test_there_are_hundreds_each_with_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) > 300


@pytest.mark.slow
def test_some_are_found_within_a_few_seeds_and_the_tree_stays_as_it_is() -> None:
    before = {mutant.path: mutant.path.read_text() for mutant in MUTANTS}
    only = [argument for name in QUICK for argument in ("--only", name)]
    command = [sys.executable, "-m", "tests.sim.mutants", "--seeds", "40", "--processes", "1", *only]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(QUICK)} of {len(QUICK)} mutants are found, 100%" in run.stdout
    for name in QUICK:
        assert f"\n{name} " in f"\n{run.stdout}"
    assert before == {path: path.read_text() for path in before}


@pytest.mark.parametrize(
    ("place", "old", "words"),
    [
        ("f", "b", r"mutant odd: its old source stands 2 times in some\.module:f, not once"),
        ("f", "h(a)", "stands 0 times"),
        ("C.g", "a", r"mutant odd: there is no C\.g in some\.module"),
    ],
)
def test_an_old_source_or_a_place_that_is_gone_or_stands_twice_is_reported(place: str, old: str, words: str) -> None:
    with pytest.raises(MisfitError, match=words):
        Mutant("odd", "nothing", "some.module", place, old, "a").change("def f(b):\n    return g(b, b)")


def test_a_module_that_is_imported_already_cannot_be_changed_any_more() -> None:
    importlib.import_module(VERDICT.module)
    with pytest.raises(MisfitError, match="is imported already"):
        plant(VERDICT)


def test_a_mutant_of_that_name_must_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "no-such"])
    assert "there is no mutant no-such" in capsys.readouterr().err


def test_likely_seeds_come_first_and_each_seed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "FILE", tmp_path / "seeds.json")
    seeds.FILE.write_text('{"a": 7, "b": 2, "c": 9, "gone": 2}')
    assert list(islice(seeds.in_order("a", 0), 11)) == [7, 2, 9, 0, 1, 3, 4, 5, 6, 8, 10]
    assert list(islice(seeds.in_order("new", 5), 5)) == [2, 7, 9, 5, 6]
    seeds.record({"c": 4, "new": 1})
    assert seeds.recorded() == {"a": 7, "b": 2, "c": 4, "gone": 2, "new": 1}


def test_too_many_survivors_or_a_broken_invariant_without_a_mutant_are_a_failure() -> None:
    unchanged = Fate(UNCHANGED, 10, 1.0)
    killed = [Fate(mutant.name, 1, 0.1, Death.INVARIANT, 3, "an invariant") for mutant in MUTANTS]
    spared = [Fate(mutant.name, 10, 1.0) for mutant in MUTANTS]
    most = int(len(MUTANTS) * (1 - SCORE_MIN))
    assert is_enough([unchanged, *spared[:most], *killed[most:]])
    assert not is_enough([unchanged, *spared[: most + 1], *killed[most + 1 :]])
    assert not is_enough([Fate(UNCHANGED, 1, 0.1, Death.INVARIANT, 0, "an invariant"), *killed])
    assert f"survived: {MUTANTS[0].name}: {MUTANTS[0].breaks}" in summary([unchanged, spared[0], *killed[1:]], MUTANTS)


def test_an_error_within_the_simulation_is_no_discovery() -> None:
    assert not Fate("x", 1, 0.1, Death.CHECKER, 0, "KeyError").killed
    assert all(Fate("x", 1, 0.1, death, 0, "").killed for death in Death if death is not Death.CHECKER)
