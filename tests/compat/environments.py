"""Installs one pair of versions into an environment of its own, and runs the tests there."""

import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.compat.interpreters import Interpreter
from tests.compat.matrix import LEARNING, TOOLS, Pair

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Outcome:
    """The result of a pair."""

    pair: Pair
    text: str
    failed: bool


def try_pair(pair: Pair, interpreter: Interpreter, envs: Path, tests: tuple[str, ...], more: list[str]) -> Outcome:
    """Install a pair and run these tests on it; `more` goes to pytest."""
    python = envs / str(pair) / "bin" / "python"
    if not _install(pair, interpreter, python):
        return Outcome(pair, "cannot be installed", failed=True)
    report = envs / f"{pair}.xml"
    flags = ("-n", "2", "--dist", "worksteal", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}")
    code = interpreter.run(python, "-m", "pytest", *flags, *more, *tests)
    return Outcome(pair, _summary(report), failed=code != 0)


def _install(pair: Pair, interpreter: Interpreter, python: Path) -> bool:
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    # It is installed by itself first: resolved together with the rest, another torch would come along.
    learning = [(f"torch=={pair.torch}", "numpy"), LEARNING] if pair.torch else []
    itself = ("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    steps: list[tuple[str, ...]] = [(interpreter.python, "-m", "venv", str(python.parents[1]))]
    steps += [(*pip, *words) for words in (*learning, (*own, *TOOLS), itself)]
    # The file says what was done, not only that it was: the tree may differ since, or need more than it did.
    complete = python.parent / ".complete"
    done = "".join(f"{shlex.join(step)}\n" for step in steps)
    if complete.exists() and complete.read_text() == done:
        return True
    if any(interpreter.run(*step) != 0 for step in steps):
        return False
    complete.write_text(done)
    return True


def _summary(report: Path) -> str:
    """Return the counts of pytest from its report."""
    try:
        [suite] = ET.parse(report).getroot()  # noqa: S314 - pytest has just written it
    except (OSError, ValueError, ET.ParseError):
        return "no test ran"
    tests, failures, errors, skipped = (int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped"))
    failed = failures + errors
    return f"{tests - failed - skipped} passed, {failed} failed, {skipped} skipped"
