"""The files of settings of both programs, their examples, and what is shown of them."""

import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinatord.config import subcommands
from coordinatord.config.serve_flags import ServeConfig
from coordinatord.config.state_flags import StateConfig
from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.messages import JobSpec
from coordinatord.runtime.settings import SettingsError
from nodeclient.config.join_config import JoinConfig
from nodeclient.config.parse import parse
from nodeclient.output.output_settings import ROTATIONS_KEPT, Rotation
from tests.support.programs import BIN, clean_environ, run

SYSTEMD = Path(__file__).parents[2] / "systemd"

COMMAND = "command = ['true']\n"


def serve(folder: Path, text: str, *flags: str, **environ: str) -> ServeConfig:
    (folder / "c.toml").write_text(text)
    found = subcommands.parse(["--config", str(folder / "c.toml"), *flags], environ)
    assert isinstance(found, ServeConfig)
    return found


def join(folder: Path, text: str, *arguments: str, front_end: str = "join", **environ: str) -> JoinConfig:
    (folder / "n.toml").write_text(text)
    names = {"PATH": os.defpath, "NODECLIENT_CONFIG": str(folder / "n.toml"), **environ}
    found = parse([front_end, *arguments], names)
    assert isinstance(found, JoinConfig)
    return found


def test_a_coordinator_takes_all_of_its_settings_from_a_file(tmp_path: Path) -> None:
    text = """
    host = "127.0.0.1"
    port = 29500
    state-dir = "/state"
    settle = 4
    heartbeat = 0.5
    outage_grace = 60
    log-level = "debug"
    log-format = "json"
    """
    found = serve(tmp_path, text)
    assert (found.host, found.port, found.state_dir) == ("127.0.0.1", 29500, Path("/state"))
    assert (found.policy.settle_s, found.policy.heartbeat_s, found.policy.outage_grace_s) == (4, 0.5, 60)
    assert (found.log_level, found.log_format, found.file) == ("debug", "json", tmp_path / "c.toml")


def test_where_state_is_kept_is_the_strongest_sources_to_say(tmp_path: Path) -> None:
    keeps, forgets = "state-dir = '/state'", "ephemeral = true"
    assert serve(tmp_path, forgets).state_dir is None
    assert serve(tmp_path, "", COORDINATORD_EPHEMERAL="1").state_dir is None
    assert serve(tmp_path, "", "--ephemeral", COORDINATORD_STATE_DIR="/other").state_dir is None
    assert serve(tmp_path, forgets, COORDINATORD_STATE_DIR="/other").state_dir == Path("/other")
    assert serve(tmp_path, forgets, COORDINATORD_EPHEMERAL="0", STATE_DIRECTORY="/its").state_dir == Path("/its")
    assert serve(tmp_path, keeps, "--ephemeral").state_dir is None
    assert serve(tmp_path, keeps, COORDINATORD_EPHEMERAL="1").state_dir is None
    assert serve(tmp_path, keeps, "--state-dir", "/flag", COORDINATORD_EPHEMERAL="1").state_dir == Path("/flag")
    for text, environ in ((f"{keeps}\n{forgets}", {}), ("", {"EPHEMERAL": "1", "STATE_DIR": "/other"})):
        with pytest.raises(SettingsError, match=r"give --state-dir, or --ephemeral to keep .*, and not both"):
            serve(tmp_path, text, **{f"COORDINATORD_{name}": value for name, value in environ.items()})


def test_a_state_directory_is_found_by_the_daemons_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("state-dir = '/state'")
    environ = {"COORDINATORD_CONFIG": str(tmp_path / "c.toml")}
    assert subcommands.parse(["state"], environ) == StateConfig(Path("/state"), json=False)


def test_a_node_takes_its_settings_and_its_command_from_a_file(tmp_path: Path) -> None:
    text = """
    coord = ["a:1", "b"]
    job-id = "mnist"
    nnodes = "2:4"
    nproc-per-node = 3
    max-restarts = 5
    redirects = 1
    local-ranks-filter = [0, 2]
    log-rotate = "100MB"
    signals-to-handle = ["SIGTERM", "SIGUSR1"]
    duplicate-stdout-filters = ["a,b", "c"]
    preload = ["torch", "my.package"]
    command = ["python3", "-c", "pass"]
    log-dir = "/logs"
    """
    found = join(tmp_path, text)
    assert found.coordinators == (Endpoint("a", 1), Endpoint("b", 29400))
    assert (found.job, found.spec, found.workers) == ("mnist", JobSpec(2, 4, 5, max_futile_rounds=3), 3)
    assert (found.output.terminal_ranks, found.output.rotation) == (
        frozenset({0, 2}),
        Rotation(100_000_000, ROTATIONS_KEPT),
    )
    assert found.output.stdout_filters == ("a,b", "c")
    assert (found.preload, found.command) == (("torch", "my.package"), ("python3", "-c", "pass"))
    assert found.remarks == (f"settings from {tmp_path / 'n.toml'}",)
    assert join(tmp_path, text, "--", "true").command == ("true",)


def test_where_a_node_finds_its_coordinator_is_the_strongest_sources_to_say(tmp_path: Path) -> None:
    alone, together = f"standalone = true\n{COMMAND}", f"coord = 'h'\n{COMMAND}"
    assert join(tmp_path, alone).standalone
    assert not join(tmp_path, alone, "--coord", "h").standalone
    assert join(tmp_path, alone, NODECLIENT_COORD="h").coordinators == (Endpoint("h", 29400),)
    assert join(tmp_path, together, NODECLIENT_STANDALONE="1").coordinators == ()
    assert join(tmp_path, together, NODECLIENT_STANDALONE="0").coordinators == (Endpoint("h", 29400),)


def test_the_command_lines_of_torchrun_take_a_file_in_their_own_words_and_ours(tmp_path: Path) -> None:
    text = "rdzv-endpoint = 'h:5'\nrdzv-conf = ['join_timeout=7', 'timeout=9']\nnnodes = 2\nshutdown-timeout = 3\n"
    found = join(tmp_path, text, __file__, "--config", "its.own", front_end="run")
    assert (found.coordinators, found.spec.nodes_max) == ((Endpoint("h", 5),), 2)
    assert (found.join_timeout_s, found.stop_timeout_s, found.abort_timeout_s) == (7, 3, 3)
    assert found.command[-2:] == ("--config", "its.own")
    assert join(tmp_path, "coord = 'h:6'\nnnodes = 2", __file__, front_end="launch").coordinators == (Endpoint("h", 6),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("coords = 'h'", "'coords' is no setting of nodeclient join; did you mean coord?"),
        ("nproc_per_nod = 2", "did you mean nproc-per-node?"),
        ("command = 'true'", "command: expected an array"),
        ("signals-to-handle = ['SIGFOO']", "signals-to-handle: 'SIGFOO' is no signal"),
        ("coord = ['a b']", "line 1: coord: 'a b' is no HOST[:PORT]"),
        ("standalone = true\ncommand = []", "give the command that each worker runs"),
    ],
)
def test_what_is_wrong_in_a_nodes_file_is_said_in_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as wrong:
        join(tmp_path, text)
    said = str(wrong.value)
    assert said.count("\n") == 0
    assert words in said


# Examples

Reader = Callable[[Path], object]


def _as_coordinator(file: Path) -> object:
    return subcommands.parse(["--config", str(file)], {"HOME": "/"})


def _as_node(file: Path) -> object:
    return parse(["join", "--config", str(file)], {"PATH": os.defpath})


@pytest.mark.parametrize(
    ("name", "read"), [("coordinatord.toml.example", _as_coordinator), ("nodeclient.toml.example", _as_node)]
)
def test_each_example_is_taken_as_it_is_and_with_each_line_that_it_leaves_out(
    name: str, read: Reader, tmp_path: Path
) -> None:
    text = (SYSTEMD / name).read_text()
    for line in text.splitlines():
        assert re.fullmatch(r"|# .+|#?[a-z-]+ = .+", line), f"systemd/{name} has the line {line!r}"
    file = tmp_path / "settings.toml"
    setting = re.compile(r"^#?([a-z-]+) = .+$", re.MULTILINE)
    lines = [match[0].removeprefix("#") for match in setting.finditer(text)]
    assert len(lines) >= 5
    file.write_text(text.replace("/opt/training/bin/python", "true"))
    assert read(file)
    for line in lines:
        names = tomllib.loads(line)
        keep = "" if "command" in names else COMMAND
        keep += "" if "coord" in names or "ephemeral" in names else "coord = 'h'\n"
        file.write_text((keep if read is _as_node else "") + line.replace("/opt/training/bin/python", "true"))
        assert read(file), line


# The programs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "more"),
    [
        (("coordinatord",), "state-dir = "),
        (("nodeclient", "join", "--coord", "h", "--", "true"), 'keep-memory = "25%"  # default'),
        (("nodeclient", "run", __file__), "rdzv-id = "),
    ],
)
def test_the_programs_show_what_is_in_force_as_a_file_that_they_take(
    argv: tuple[str, ...], more: str, tmp_path: Path
) -> None:
    def show(**environ: str) -> tuple[str, dict[str, Any]]:
        words = (
            (argv[0], *argv[1:2], "--show-config", *argv[2:]) if argv[0] == "nodeclient" else (*argv, "--show-config")
        )
        ended = run(BIN / words[0], *words[1:], environ=clean_environ(XDG_STATE_HOME=str(tmp_path), **environ))
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout, tomllib.loads(ended.stdout)

    text, found = show(NODECLIENT_LOG_FORMAT="json", COORDINATORD_LOG_FORMAT="json")
    assert more in text
    assert f'log-format = "json"  # environment variable {argv[0].upper()}_LOG_FORMAT' in text
    file = tmp_path / "shown.toml"
    file.write_text(text)
    again, same = show(NODECLIENT_CONFIG=str(file), COORDINATORD_CONFIG=str(file))
    assert same == found
    assert f"file {file}, line " in again
