"""The units and their example settings: systemd accepts them, and what they name exists. Nothing is started here."""

import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from coordinatord.commands.delayed_end import CLOSE_MARGIN_S
from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.fields import DEFAULT_PORT
from coordinatord.server.sessions.connections import BACKLOG
from nodeclient.shell.stop_extension import LEAVE_MARGIN_S
from tests.support.exits_of_nodes import FOR_GOOD, LEFT, WORTH_ANOTHER_TRY, codes_of_nodes

ROOT = Path(__file__).resolve().parents[2]
SYSTEMD = ROOT / "systemd"
SERVICES = ("coordinatord.service", "nodeclient@.service")
UNITS = (*SERVICES, "coordinatord.socket")
DROP_INS = ("standby.conf", "replicated-disk.conf")
"""What a host may have beside coordinatord.service."""
EXAMPLES = ("coordinatord.env.example", "nodeclient.env.example")

EXPOSURE_MOST = 2.0
"""The limit of 10, where 0 is a service that can do nothing at all."""

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


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Have systemd look at units."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed, so the units were not verified")
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def complaints(folder: Path, unit: str, text: str) -> list[str]:
    """Have systemd verify a unit among the others, and return its complaints about it.

    The host's own units are loaded too, and their faults are none of ours.
    """
    for other in UNITS:
        shown = text if other == unit else (SYSTEMD / other).read_text()
        executable = f"ExecStart={shutil.which('true')}"
        (folder / other).write_text(re.sub(r"^ExecStart=\S+", executable, shown, flags=re.MULTILINE))
    instance = unit.replace("@.", "@mnist.")
    said = analyze("verify", folder / instance).stderr
    return [line for line in said.splitlines() if any(name in line for name in (unit, instance))]


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_unit(unit: str, tmp_path: Path) -> None:
    assert complaints(tmp_path, unit, (SYSTEMD / unit).read_text()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", DROP_INS)
def test_systemd_accepts_the_unit_with_what_is_beside_it(name: str, tmp_path: Path) -> None:
    beside = (SYSTEMD / name).read_text()
    text = (SYSTEMD / "coordinatord.service").read_text()
    uncommented = re.sub(r"^#(?=[A-Z]\w+=)", "", beside, flags=re.MULTILINE)
    for added in (beside, uncommented):
        assert complaints(tmp_path, "coordinatord.service", f"{text}\n{added}") == []
    assert complaints(tmp_path, "coordinatord.service", f"{text}\n{beside.replace('=', 'x=')}") != []


@pytest.mark.parametrize("unit", SERVICES)
def test_the_unit_starts_a_program_that_the_package_installs(unit: str) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    program = Path(value(unit, "ExecStart").split()[0])
    assert program.name in scripts
    assert program.is_absolute()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*UNITS, *EXAMPLES, *DROP_INS])
def test_every_setting_that_is_named_is_a_flag_of_its_program(name: str) -> None:
    named = set(re.findall(r"\b(?:COORDINATORD|NODECLIENT)_\w+", (SYSTEMD / name).read_text()))
    assert named <= known_settings(), f"systemd/{name} names settings that no program has"


@pytest.mark.slow
def test_the_coordinator_can_do_next_to_nothing_beyond_its_work() -> None:
    done = analyze("security", "--offline=true", "--no-pager", SYSTEMD / "coordinatord.service")
    exposure = re.search(r"Overall exposure level for coordinatord.service: (\S+)", done.stdout)
    assert exposure is not None, done
    assert float(exposure[1]) < EXPOSURE_MOST, done.stdout


def test_the_coordinator_is_always_restarted_and_keeps_its_state() -> None:
    unit = "coordinatord.service"
    assert value(unit, "Type") == "notify"
    assert value(unit, "Restart") == "always"
    assert value(unit, "RestartPreventExitStatus") == f"{ExitCode.USAGE:d} {ExitCode.DATA_ERROR:d}"
    assert f"{ExitCode.USAGE:d}|{ExitCode.DATA_ERROR:d})" in value(unit, "ExecStopPost"), "a connection would start it"
    assert value(unit, "StateDirectory"), "it reads $STATE_DIRECTORY, which this sets"
    assert value(unit, "StartLimitIntervalSec") == "0", "restarts would reach a limit, and be given up"


def test_a_stuck_coordinator_is_restarted_only_when_its_nodes_have_given_it_up() -> None:
    policy = Policy()
    assert int(value("coordinatord.service", "WatchdogSec")) > policy.heartbeat_s * policy.heartbeats_per_lease


def test_systemd_listens_where_nodes_look_and_the_daemon_would() -> None:
    assert value("coordinatord.socket", "ListenStream") == str(DEFAULT_PORT)
    assert value("coordinatord.socket", "Backlog") == str(BACKLOG)
    assert value("coordinatord.service", "Requires") == "coordinatord.socket"


@pytest.mark.slow
def test_programs_have_the_time_to_end_cleanly() -> None:
    unit = "nodeclient@.service"
    assert value(unit, "KillMode") == "mixed"
    stop_timeout = re.search(r"--stop-timeout.*?\(default: (\d+)\)", help_of("nodeclient", "join"), re.DOTALL)
    assert stop_timeout is not None
    assert int(value(unit, "TimeoutStopSec")) >= int(stop_timeout.group(1)) + LEAVE_MARGIN_S
    assert int(value("coordinatord.service", "TimeoutStopSec")) > CLOSE_MARGIN_S
    assert value(unit, "SuccessExitStatus") == f"{ExitCode.TERMINATED:d} {ExitCode.STOPPED:d}"


def test_files_that_are_read_again_are_no_credentials() -> None:
    """A credential is a copy that systemd makes at the start: the program would not see a new token or password."""
    assert values("nodeclient@.service", "LoadCredential") == []
    again = ("NODECLIENT_TOKEN_FILE", "COORDINATORD_ETCD_USER_FILE")
    named = dict(
        re.findall(r"Environment=(\w+)=(\S+)", "".join((SYSTEMD / name).read_text() for name in (*UNITS, *DROP_INS)))
    )
    guide = (SYSTEMD / "README.md").read_text()
    for variable in again:
        file = named[variable].replace("%S/", "/var/lib/private/")
        assert re.search(rf"install -m 6\d\d .*{re.escape(file)}$", guide, re.MULTILINE), f"{file} has to be readable"


def test_a_node_is_restarted_only_where_that_may_help() -> None:
    unit = "nodeclient@.service"
    assert value(unit, "Restart") == "on-abnormal", "a worker's exit code is that of its job, and may be any number"
    assert {int(code) for code in value(unit, "RestartForceExitStatus").split()} == WORTH_ANOTHER_TRY
    assert codes_of_nodes() == WORTH_ANOTHER_TRY | LEFT | FOR_GOOD
    assert f"{ExitCode.OK:d}|{ExitCode.STOPPED:d})" in value(unit, "ExecStopPost"), (
        "it would train anew at the next boot"
    )
    assert values(unit, "RestartPreventExitStatus") == [], "it would win over both of these"
