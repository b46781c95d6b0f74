"""Surroundings in which the programs go on, or end with one line: odd names, a missing systemd, a killed helper."""

import signal
import sys
from pathlib import Path

import pytest

from tests.support.programs import BIN, Program, await_end, clean_environ, kill_quietly, run

pytestmark = pytest.mark.slow

NO_HOST_NAMES = ["a..b", f"{'x' * 70}.example:29400"]
"""Names that a resolver does not even look up (RFC 1035, 2.3.4: labels of 1 to 63 bytes)."""


@pytest.mark.parametrize("host", NO_HOST_NAMES, ids=lambda host: ascii(host)[:9])
def test_a_node_says_of_an_impossible_host_name_that_it_cannot_be_resolved(host: str) -> None:
    ended = run(BIN / "nodeclient", "join", "--coord", host, "--join-timeout", "3", "--", "true")
    assert (ended.returncode, ended.stdout) == (69, "")
    assert "Traceback" not in ended.stderr
    assert f"the host name {host.partition(':')[0]} cannot be resolved" in ended.stderr.splitlines()[-1]


def test_coordinatord_serves_though_systemd_cannot_be_notified(tmp_path: Path) -> None:
    environ = clean_environ(NOTIFY_SOCKET=str(tmp_path / "nowhere"))
    with Program(BIN / "coordinatord", "--host", "127.0.0.1", "--port", "0", "--ephemeral", environ=environ) as program:
        endpoint = program.await_line(r"coordinatord listening on http://(\S+)")[1]
        assert run(BIN / "nodeclient", "status", "--coord", endpoint).stdout.startswith("no jobs\n")
        assert program.stop() == 0
        assert "Traceback" not in program.output


@pytest.mark.parametrize("closed", [0, 1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "flags", [pytest.param((), id="cold", marks=pytest.mark.long), pytest.param(("--preload", "json"), id="warm")]
)
def test_a_node_without_a_standard_stream_gives_its_worker_an_empty_one(
    tmp_path: Path, closed: int, flags: tuple[str, ...]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        f"with open({str(tmp_path / 'seen')!r}, 'w') as seen:\n"
        f"    print(os.readlink('/proc/self/fd/{closed}'), 'json.decoder' in sys.modules, file=seen)\n"
    )
    join = [str(BIN / "nodeclient"), "join", "--standalone", *flags, "--", sys.executable, str(script)]
    ended = run("sh", "-c", f'exec "$@" {closed}<&-', "sh", *join)
    assert ended.returncode == 0, ended.stderr
    where, warm = (tmp_path / "seen").read_text().split()
    if closed == 0:
        assert where == "/dev/null"
    assert warm == str(bool(flags))


def test_a_standalone_node_whose_coordinator_is_killed_ends_its_workers_and_says_so() -> None:
    command = ("sh", "-c", "echo worker $$; sleep 1000")
    with Program(BIN / "nodeclient", "join", "--standalone", "--stop-timeout", "1", "--", *command) as node:
        worker = int(node.await_line(r"^worker (\d+)")[1])
        [coordinator] = [
            pid for pid in node.leftovers() if b"coordinatord.cli" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        kill_quietly(coordinator, signal.SIGKILL)
        assert node.wait() == 69
        await_end(worker)
        assert node.leftovers() == []
        assert "Traceback" not in node.output
