"""SIGHUP to a real coordinatord: what it reads again, logs of it, and grants the nodes that are connected."""

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinatord.protocol.messages import Desired
from tests.support.cluster import Cluster, Coordinator
from tests.support.programs import BIN, Program, clean_environ, kill_quietly
from tests.support.raw_session import connect, join

pytestmark = pytest.mark.slow

Start = Callable[..., Coordinator]


class Reloaded:
    """A coordinatord with a file of settings that a test rewrites."""

    def __init__(self, file: Path, start: Start, text: str, *flags: str) -> None:
        self.file = file
        self.file.write_text(text)
        self.program = start("--config", str(file), *flags)

    def rewrite(self, text: str) -> None:
        """Give it other settings from now on."""
        self.file.write_text(text)
        self.program.signal(signal.SIGHUP)


def test_connected_nodes_are_granted_the_changed_settings_at_once(own_coordinator: Start, tmp_path: Path) -> None:
    daemon = Reloaded(tmp_path / "c.toml", own_coordinator, "heartbeat = 1\noutage-grace = 100\n")

    async def granted() -> list[tuple[float, float, float]]:
        found = []
        async with connect(daemon.program.url, join("a", nodes=2)) as peer:
            for text in (None, "heartbeat = 20\noutage-grace = 100\n", "heartbeat = 0.5\noutage-grace = 30\n"):
                if text is not None:
                    daemon.rewrite(text)
                received = await peer.receive(Desired)
                found.append((received.heartbeat_s, received.lease_s, received.outage_grace_s))
        return found

    assert asyncio.run(granted()) == [(1, 5, 100), (20, 100, 100), (0.5, 2.5, 30)]
    daemon.program.await_line("settings reloaded: heartbeat 20 to 0.5")
    said = [line for line in daemon.program.lines if "settings" in line]
    assert said[0].endswith(f"settings from {daemon.file} file={daemon.file}")
    assert said[1].endswith("settings reloaded: heartbeat 1 to 20")
    assert said[2].endswith("settings reloaded: heartbeat 20 to 0.5, outage-grace 100 to 30")


def test_a_wrong_file_changes_nothing_and_what_needs_a_restart_is_named(own_coordinator: Start, tmp_path: Path) -> None:
    daemon = Reloaded(tmp_path / "c.toml", own_coordinator, "heartbeat = 1\n", "--log-level", "info")
    daemon.rewrite("# oops\nhartbeat = 2\n")
    daemon.program.await_line(
        r"ERROR .* not reloaded, no setting has changed: .*line 2: 'hartbeat' is no setting of coordinatord;"
        " did you mean heartbeat"
    )
    assert not any(" reason=" in line for line in daemon.program.lines), "which is said already"
    daemon.rewrite("heartbeat = 0.0001\n")
    daemon.program.await_line(r"not reloaded, .*line 1: heartbeat: '0.0001': expected seconds, at least 0.1 ")
    daemon.rewrite(
        "heartbeat = 1\nsettle = 9\nport = 1\nlog-level = 'error'\n"
    )  # flags win: --port, --settle, --log-level
    daemon.program.await_line(r"settings reloaded: nothing has changed$")
    daemon.file.unlink()
    daemon.program.signal(signal.SIGHUP)
    daemon.program.await_line(r"cannot be read: No such file or directory")
    assert daemon.program.stop() == 0


def test_a_port_of_0_is_named(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("port = 0\n")
    flags = ("--config", file, "--host", "127.0.0.1", "--ephemeral", "--insecure")
    with Program(BIN / "coordinatord", *flags, environ=clean_environ()) as program:
        program.await_line("coordinatord listening")
        file.write_text("port = 1\n")
        program.signal(signal.SIGHUP)
        program.await_line("settings reloaded: nothing has changed; these need a restart: port 0 to 1$")


def test_the_form_and_the_level_of_the_log_change_and_each_line_is_of_one_form(
    own_coordinator: Start, tmp_path: Path
) -> None:
    daemon = Reloaded(tmp_path / "c.toml", own_coordinator, "log-format = 'json'\nlog-level = 'warning'\n")
    daemon.rewrite("log-level = 'info'\n")
    daemon.program.await_line(
        r"Z INFO    coordinatord: settings reloaded: log-level warning to info, log-format json to text"
    )
    daemon.rewrite("log-level = 'error'\n")
    daemon.program.await_line(r"Z INFO    coordinatord: settings reloaded: log-level info to error$")
    daemon.rewrite("log-format = 'json'\n")
    last = daemon.program.await_line(r"^\{.*settings_reloaded.*")
    assert json.loads(last[0])["message"] == "settings reloaded: log-level error to info, log-format text to json"
    assert sum("reloaded" in line for line in daemon.program.lines) == 3


def test_all_that_either_program_says_in_json_is_json(own_coordinator: Start) -> None:
    program = own_coordinator("--log-format", "json")
    with Cluster(program, "job") as nodes:
        node = nodes.join("a", "--log-format", "json", "--nnodes", "1")
        kill_quietly(nodes.await_round(1).workers[0].pid, signal.SIGUSR2)
        assert node.wait() == 17
    assert program.stop() == 0
    said = [json.loads(line) for line in node.lines]
    received = [line for line in said if line.get("program") == "nodeclient"]
    assert [line["event"] for line in said if line not in received] == ["started"], "which is the worker's"
    events = [line["event"] for line in received]
    assert events[0] == "connected"
    assert events[-3:] == ["worker_failed", "round_failed", "ended"]
    [report] = [line for line in received if line["event"] == "round_failed"]
    assert (report["rank"], report["failed_node"], report["exit_code"], report["job"]) == (0, "a", 17, "job")
    records = [json.loads(line) for line in program.lines if not line.startswith("coordinatord listening")]
    names = [record["event"] for record in records]
    assert [name for name in names if name.startswith(("run_", "round_"))].count("round_formed") == 1
    assert names[-1] == "stopping"
    assert all(record["program"] == "coordinatord" and record["message"] for record in records)
