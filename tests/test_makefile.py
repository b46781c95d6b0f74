"""`make setup` installs the torch that is named, and keeps one that was chosen. No pip runs here, only its stand-in."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PYTHON = """#!/bin/sh
case "$*" in
*importlib.metadata*) cat "${0%/*}/torch" ;;
*"pip "*torch==*) for word; do case $word in torch==*) echo "$word" > "${0%/*}/torch" ;; esac; done; echo "pip $*" ;;
esac
"""
"""Says that the torch is there which its pip was asked for last."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("make") is None, reason="needs make"),
]


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
