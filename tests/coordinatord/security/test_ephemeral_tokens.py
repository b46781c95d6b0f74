"""The file of a coordinator that keeps nothing goes with its process, or with the next start on the host."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from coordinatord.protocol.access_token import parse_tokens
from coordinatord.runtime.boot import boot_id
from coordinatord.runtime.private_files import write_private
from coordinatord.security.ephemeral_tokens import remove_files_of_ended, write_ephemeral
from coordinatord.security.setup import Security, SecuritySettings

KILLED = """
import os, pathlib, signal, sys
from coordinatord.security.ephemeral_tokens import write_ephemeral
write_ephemeral(pathlib.Path(sys.argv[1]), "")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def left(environ: dict[str, str]) -> list[str]:
    return sorted(path.name for path in Path(environ["XDG_CONFIG_HOME"], "coordinatord", "tokens").iterdir())


def test_tokens_of_a_process_that_lives_stay(environ: dict[str, str]) -> None:
    security = Security(SecuritySettings(None), environ, lambda: 0.0)
    security.make_first_tokens()
    remove_files_of_ended(environ)
    assert left(environ) == [security.pin]
    text = Path(environ["XDG_CONFIG_HOME"], "coordinatord", "tokens", security.pin).read_text()
    assert len(parse_tokens(text)) == 2
    security.close()
    assert left(environ) == []


@pytest.mark.slow
@pytest.mark.skipif(not boot_id(), reason="needs /proc")
def test_tokens_of_one_that_was_killed_go_and_of_others_nobody_knows(environ: dict[str, str]) -> None:
    folder = Path(environ["XDG_CONFIG_HOME"], "coordinatord", "tokens")
    subprocess.run([sys.executable, "-c", KILLED, str(folder / "dead")], check=False)
    write_private(folder / "elsewhere", (folder / "dead").read_text().replace(boot_id(), "another-boot"))
    write_private(folder / "kept", "# Tokens\n")
    assert left(environ) == ["dead", "elsewhere", "kept"]
    remove_files_of_ended(environ)
    assert left(environ) == ["elsewhere", "kept"]


@pytest.mark.parametrize("call", ["os.open", "fcntl.flock"])
def test_a_file_that_goes_before_it_is_locked_is_written_anew(
    environ: dict[str, str], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(environ["XDG_CONFIG_HOME"], "coordinatord", "tokens", "pin")
    unlucky, begin = [path], pkgutil.resolve_name(call)

    def late(file: Path | int, *arguments: int) -> object:
        while unlucky and (file == path or isinstance(file, int)):
            unlucky.pop().unlink()
        return begin(file, *arguments)

    monkeypatch.setattr(call, late)
    write_ephemeral(path, "# Tokens\n")
    assert path.read_text().startswith("# Tokens\n")
    assert not unlucky


def test_without_any_nothing_happens(environ: dict[str, str]) -> None:
    remove_files_of_ended(environ)
