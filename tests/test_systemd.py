"""The units and their example settings: systemd accepts them, and what they name exists.

Nothing is started here: how the programs behave under the signals that systemd sends belongs to
their own tests.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from coordinatord.wire.exits import ExitCode

ROOT = Path(__file__).resolve().parents[1]
SYSTEMD = ROOT / "systemd"
UNITS = ("coordinatord.service", "nodeclient@.service")
EXAMPLES = ("coordinatord.env.example", "nodeclient.env.example")

COMMANDS = (("coordinatord",), ("nodeclient", "join"))


@cache
def help_of(*command: str) -> str:
    """Have a program explain its flags."""
    return subprocess.check_output([sys.executable, "-m", *command, "--help"], cwd=ROOT, text=True)


def known_settings() -> set[str]:
    """Name the environment variables that may be set: the programs' flags and the unit's command."""
    helps = "".join(help_of(*command) for command in COMMANDS)
    return {"NODECLIENT_COMMAND", *re.findall(r"\[(\w+)\]", helps)}


def values(unit: str, key: str) -> list[str]:
    """Collect what a unit sets `key` to, in order.

    A unit may set a key more than once, which `configparser` does not allow.
    """
    pattern = re.compile(rf"^{re.escape(key)}=(.*)$", re.MULTILINE)
    return pattern.findall((SYSTEMD / unit).read_text())


def value(unit: str, key: str) -> str:
    """Get what a unit sets `key` to, exactly once."""
    [only] = values(unit, key)
    return only


def complaints(folder: Path, unit: str, text: str) -> list[str]:
    """Have systemd verify a unit, and return what it says about it.

    The host's own units are loaded too, and their faults are none of ours.
    """
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed, so the units were not verified")
    executable = shutil.which("true")
    (folder / unit).write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={executable}", text, flags=re.MULTILINE))
    instance = unit.replace("@.", "@mnist.")
    done = subprocess.run([verify, "verify", folder / instance], capture_output=True, text=True, check=False)
    names = (unit, instance)
    return [line for line in done.stderr.splitlines() if any(name in line for name in names)]


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_unit(unit: str, tmp_path: Path) -> None:
    assert complaints(tmp_path, unit, (SYSTEMD / unit).read_text()) == []


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("\nRestart=", "\nRestrat="),
        ("\nRestart=", "\nRestart=perhaps "),
        ("\nType=", "\nType=some"),
    ],
)
def test_a_mistake_in_the_unit_is_found(unit: str, right: str, wrong: str, tmp_path: Path) -> None:
    text = (SYSTEMD / unit).read_text()
    assert right in text
    assert complaints(tmp_path, unit, text.replace(right, wrong)) != []


@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_starts_a_program_that_the_package_installs(unit: str) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    program = Path(value(unit, "ExecStart").split()[0])
    assert program.name in scripts
    assert program.is_absolute()


@pytest.mark.parametrize("name", [*UNITS, *EXAMPLES])
def test_every_setting_that_is_named_is_a_flag_of_its_program(name: str) -> None:
    named = set(re.findall(r"\b(?:COORDINATORD|NODECLIENT)_\w+", (SYSTEMD / name).read_text()))
    assert named <= known_settings(), f"systemd/{name} names settings that no program has"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_line_of_an_example_is_a_comment_or_a_setting(name: str) -> None:
    for line in (SYSTEMD / name).read_text().splitlines():
        assert re.fullmatch(r"|# .+|#?[A-Z_]+=\S.*", line), f"systemd/{name} has the line {line!r}"


def test_the_coordinator_is_always_restarted_and_keeps_its_state() -> None:
    unit = "coordinatord.service"
    assert value(unit, "Type") == "notify"
    assert value(unit, "Restart") == "always"
    assert value(unit, "StartLimitIntervalSec") == "0"
    assert value(unit, "RestartPreventExitStatus") == f"{ExitCode.USAGE:d} {ExitCode.DATA_ERROR:d}"
    assert value(unit, "StateDirectory"), "it reads $STATE_DIRECTORY, which this sets"


def test_a_node_has_the_time_to_leave_cleanly() -> None:
    unit = "nodeclient@.service"
    assert value(unit, "KillMode") == "mixed"
    stop_timeout = re.search(r"--stop-timeout.*?\(default: (\d+)\)", help_of("nodeclient", "join"), re.DOTALL)
    assert stop_timeout is not None
    assert int(value(unit, "TimeoutStopSec")) > int(stop_timeout.group(1))
    assert value(unit, "SuccessExitStatus") == str(ExitCode.TERMINATED.value)


def test_a_node_is_restarted_only_where_that_may_help() -> None:
    unit = "nodeclient@.service"
    assert value(unit, "Restart") == "on-failure"
    hopeless = {str(code.value) for code in (ExitCode.USAGE, ExitCode.REFUSED)}
    assert set(value(unit, "RestartPreventExitStatus").split()) == hopeless


def test_a_node_serves_the_job_that_its_instance_names() -> None:
    unit = "nodeclient@.service"
    program, *arguments = value(unit, "ExecStart").split()
    assert Path(program).name == "nodeclient"
    assert arguments == ["join", "--job-id", "%i", "--node-id", "%H", "--", "$NODECLIENT_COMMAND"]
    assert value(unit, "EnvironmentFile") == "/etc/nodeclient/%i.env"
    assert {"--job-id", "--node-id"} <= set(help_of("nodeclient", "join").split())
