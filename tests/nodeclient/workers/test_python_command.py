"""Which command lines can be started warm, and the errors of those that cannot."""

import os
import sys
from pathlib import Path

import pytest

from nodeclient.workers.python_command import ColdError, check_warm, program_of
from nodeclient.workers.spawn import LOCAL_RANK_MACRO

WARM = [
    ["train.py"],
    ["-u", "train.py", "-I"],
    ["-uO", "-X", "dev", "-Werror", "-W", "ignore", "train.py"],
    ["-Xutf8", "-m", "package.train", "--lr", "1"],
    ["-mpackage.train", "-S"],
    ["-c", "print(1)", "-E"],
    ["-cprint(1)"],
    ["--check-hash-based-pycs", "always", "train.py"],
    ["-"],
    ["train.py", f"--local-rank={LOCAL_RANK_MACRO}"],
]

COLD = [
    (["-I", "train.py"], "isolated (-I)"),
    (["-uE", "train.py"], "set to ignore PYTHONPATH (-E)"),
    (["-S", "-m", "train"], "set not to import site (-S)"),
    ([], "no program"),
    (["-u"], "no program"),
    (["-X", "dev"], "no program"),
    ([f"train-{LOCAL_RANK_MACRO}.py"], "another program"),
    (["-c", f"print({LOCAL_RANK_MACRO})"], "another program"),
    (["-m", f"train{LOCAL_RANK_MACRO}"], "another program"),
    (["-X", f"cpu_count={LOCAL_RANK_MACRO}", "train.py"], "another program"),
]


@pytest.mark.parametrize("arguments", WARM, ids=" ".join)
def test_pythons_own_command_lines_can_be_started_warm(arguments: list[str]) -> None:
    check_warm([sys.executable, *arguments], os.environ)


@pytest.mark.parametrize(("arguments", "why"), COLD)
def test_what_would_not_find_the_hook_cannot(arguments: list[str], why: str) -> None:
    with pytest.raises(ColdError) as cold:
        check_warm([sys.executable, *arguments], os.environ)
    assert why in str(cold.value)


def test_a_program_of_another_kind_cannot_whatever_its_name(tmp_path: Path) -> None:
    wrapper = tmp_path / "python3"
    wrapper.write_text('#!/bin/sh\nexec /usr/bin/env -i python3 "$@"\n')
    wrapper.chmod(0o755)
    for program in ("sh", str(wrapper), str(tmp_path / "missing")):
        with pytest.raises(ColdError) as cold:
            check_warm([program, "train.py"], os.environ)
        assert program in str(cold.value)


def test_a_link_to_an_interpreter_is_one(tmp_path: Path) -> None:
    link = tmp_path / "our-python"
    link.symlink_to(sys.executable)
    check_warm([str(link), "train.py"], os.environ)


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        (["python", "train.py", "-m"], ("", "train.py")),
        (["/opt/bin/python3.13t", "-uO", "-X", "dev", "-Wignore", "a/b.py"], ("", "a/b.py")),
        (["python", "-um", "package"], ("-m", "package")),
        (["python", "-mpackage"], ("-m", "package")),
        (["python", "-c", "print(1)"], ("-c", "print(1)")),
        (["python", "-", "train.py"], ("", "")),
        (["python", "-u"], ("", "")),
        (["python", "-m"], ("", "")),
        (["python", "-I", "train.py"], ("", "train.py")),
        (["bash", "train.py"], ("", "")),
    ],
)
def test_what_a_python_runs_is_found(argv: list[str], program: tuple[str, str]) -> None:
    assert program_of(argv) == program
