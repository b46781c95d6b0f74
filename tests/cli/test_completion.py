"""`--print-completion`: what it prints is a script that the shell takes, and that completes."""

# ruff: noqa: S607  # the shells are found as a person would find them

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.programs import BIN, run

pytestmark = pytest.mark.slow


@cache
def completions(program: str, shell: str) -> str:
    """Return the script."""
    ended = run(BIN / program, "--print-completion", shell)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
@pytest.mark.parametrize("program", ["nodeclient", "coordinatord"])
def test_the_shell_takes_the_script(program: str, shell: str, tmp_path: Path) -> None:
    (path := tmp_path / "script").write_text(completions(program, shell))
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    checked = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("program", "words", "expected"),
    [
        ("nodeclient", "dr", "drain"),
        ("nodeclient", "run --nnod", "--nnodes"),
        ("nodeclient", "join --standal", "--standalone"),
        ("nodeclient", "status --wat", "--watch"),
        ("nodeclient", "run --numa-binding soc", "socket"),
        ("coordinatord", "--sett", "--settle"),
        ("coordinatord", "replay --st", "--state-dir --step --store"),
    ],
)
def test_bash_completes_commands_flags_and_values(program: str, words: str, expected: str, tmp_path: Path) -> None:
    (path := tmp_path / "script").write_text(completions(program, "bash"))
    line = [program, *words.split()]
    ask = f'source "$0"; COMP_WORDS=("$@"); COMP_CWORD={len(line) - 1}; _shtab_{program} {program} "${{@: -1}}"'
    script = f'{ask}; printf "%s\\n" "${{COMPREPLY[@]}}" | grep -v _ | sort | xargs'
    found = subprocess.run(["bash", "-c", script, path, *line], capture_output=True, text=True, check=False)
    assert found.stdout.strip() == expected, found.stderr
