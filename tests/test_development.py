"""What those who develop this stand on: the lock file, `make setup`, quick tests without torch, and no leftovers."""

import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.programs import Program, await_end, wait_until
from tests.support.source import ROOT

LOCK = (ROOT / "requirements-dev.lock").read_text()

TABLES = tomllib.loads((ROOT / "pyproject.toml").read_text())

LOCKED = {
    match[1].lower(): match[0] for match in re.finditer(r"^([\w.-]+)==[^\n]*(?:\n    [^\n]+)*", LOCK, re.MULTILINE)
}
"""The lines of each package."""


def test_each_dependency_is_locked_to_a_version_in_its_range() -> None:
    project = TABLES["project"]
    extras = project["optional-dependencies"]
    wanted = map(Requirement, (*project["dependencies"], *extras["demo"], *TABLES["dependency-groups"]["dev"]))
    for requirement in wanted:
        if requirement.name != "coordinatord":
            version = LOCKED[requirement.name].partition("==")[2].split()[0]
            assert version in requirement.specifier, requirement
    assert not {name for name in LOCKED if name.startswith(("torch", "nvidia", "triton"))}


def test_each_package_has_hashes_and_no_place_is_named() -> None:
    assert all(" --hash=sha256:" in lines for lines in LOCKED.values())
    assert "://" not in LOCK
    assert "index" not in LOCK


# `make setup` installs the torch that is named, and keeps one that was chosen. No pip runs here, only its stand-in.

PYTHON = """#!/bin/sh
case "$*" in
*importlib.metadata*) cat "${0%/*}/torch" ;;
*"pip "*torch==*) for word; do case $word in torch==*) echo "$word" > "${0%/*}/torch" ;; esac; done; echo "pip $*" ;;
esac
"""
"""Says that the torch is there which its pip was asked for last."""


def setup(folder: Path, *given: str) -> list[str]:
    """Return the builds of torch that `make setup` has installed."""
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    for name in ("Makefile", "pyproject.toml"):
        if not (folder / name).exists():
            shutil.copy(ROOT / name, folder)
    command = ["make", "--no-print-directory", f"PYTHON={python}", "setup", *given]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return re.findall(r"^pip .*--force-reinstall.* (torch==\S+)$", done.stdout, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_a_build_that_was_chosen_stays_until_another_one_is_named(tmp_path: Path) -> None:
    [usual] = setup(tmp_path)
    assert usual.endswith("+cpu")
    assert setup(tmp_path) == []
    for cuda in (f"TORCH={usual.removesuffix('+cpu')}", "TORCH=torch==2.99.0"):
        assert setup(tmp_path, cuda) == [cuda.partition("=")[2]]
        assert setup(tmp_path, cuda) == []
        (tmp_path / "pyproject.toml").touch()
        kept = setup(tmp_path)
        assert kept == ([usual] if "2.99" in cuda else []), "the release that all use, in the build that was chosen"


# Tests


@pytest.mark.slow
def test_no_module_of_quick_tests_imports_torch() -> None:
    collect = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "not slow and not long"]
    found = subprocess.run([sys.executable, *collect], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-2_000:] + found.stderr[-2_000:]


TESTS = """
import signal
from tests.support.programs import Program
print(Program("sleep", "1000").pid, flush=True)
signal.pause()
"""


@pytest.mark.slow
def test_a_program_does_not_outlive_killed_tests() -> None:
    with Program(sys.executable, "-c", TESTS, cwd=ROOT) as tests:
        started = int(tests.await_line(r"^\d+$")[0])
        # Until then it is the program that binds its life to ours.
        wait_until("the sleep", lambda: Path(f"/proc/{started}/comm").read_text() == "sleep\n")
        tests.signal(signal.SIGKILL)
        await_end(started)
