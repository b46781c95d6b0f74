"""The file of a coordinator that keeps nothing goes with its process, or with the next start on the host."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from coordinatord.protocol.access_token import parse_tokens
from coordinatord.runtime.private_files import write_private
from coordinatord.security.ephemeral_tokens import Process, remove_files_of_ended, this_process
from coordinatord.security.setup import Security, SecuritySettings

ENDED = """
from coordinatord.security.ephemeral_tokens import this_process
print(this_process().line, end="")
"""


@pytest.fixture
def ours() -> Process:
    found = this_process()
    if found is None:
        pytest.skip("needs /proc")
    return found


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def left(environ: dict[str, str]) -> list[str]:
    return sorted(path.name for path in Path(environ["XDG_CONFIG_HOME"], "coordinatord", "tokens").iterdir())


def test_tokens_of_a_process_that_lives_stay(environ: dict[str, str], ours: Process) -> None:
    security = Security.open(SecuritySettings(None), environ, lambda: 0.0)
    remove_files_of_ended(environ)
    assert left(environ) == [security.pin]
    text = Path(environ["XDG_CONFIG_HOME"], "coordinatord", "tokens", security.pin).read_text()
    assert text.endswith(ours.line)
    assert len(parse_tokens(text)) == 2
    security.close()
    assert left(environ) == []


@pytest.mark.slow
def test_tokens_of_one_that_was_killed_go_and_of_others_nobody_knows(environ: dict[str, str], ours: Process) -> None:
    done = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True, check=True)
    folder = Path(environ["XDG_CONFIG_HOME"], "coordinatord", "tokens")
    files = {
        "dead": done.stdout,
        "of a number that is taken anew": replace(ours, began=ours.began + 1).line,
        "elsewhere": replace(ours, pid=1, began=1, host="another-boot").line,
        "kept": "# Tokens\n",
        "alive": ours.line,
    }
    for name, text in files.items():
        write_private(folder / name, f"# Tokens of the coordinatord on h.\n{text}")
    remove_files_of_ended(environ)
    assert left(environ) == ["alive", "elsewhere", "kept"]


@pytest.mark.slow
@pytest.mark.usefixtures("ours")
def test_a_process_that_nobody_has_waited_for_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ENDED], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        line = child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    pid, began, place = line.split()[6:]
    assert Process(int(pid), int(began), place).has_ended
    child.wait()


def test_without_any_nothing_happens(environ: dict[str, str]) -> None:
    remove_files_of_ended(environ)
