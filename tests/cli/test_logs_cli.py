"""`nodeclient logs`: what workers have written, read from their nodes by way of the coordinator."""

import json
import re
from pathlib import Path

import pytest

from tests.support.canned_http import canned, stream
from tests.support.cluster import Cluster
from tests.support.commands import command_at
from tests.support.programs import BIN, Program, run, wait_until
from tests.support.screens import on_terminal

pytestmark = pytest.mark.slow

SAYS = """
trap 'exit 0' USR1
echo "round $COORDINATORD_ROUND of $RANK"
echo "trouble of $RANK" >&2
if [ "$COORDINATORD_ROUND" = 1 ] && [ "$RANK" = 1 ]; then read line < {gate}; exit 3; fi
if [ "$COORDINATORD_ROUND" = 2 ]; then read line < {end}.$RANK; echo "last of $RANK"; exit 0; fi
while :; do sleep 0.01; done
"""


def logs(cluster: Cluster, *arguments: str) -> tuple[str, str]:
    ended = run(BIN / "nodeclient", "logs", "--coord", cluster.coordinator.endpoint, cluster.job, *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


def written(log_dir: Path, cluster: Cluster, count: int) -> None:
    """Wait until so many files have something in them."""

    def found() -> bool:
        return sum(path.stat().st_size > 0 for path in log_dir.rglob("*.log")) == count

    wait_until(f"{count} logs of {cluster.job}", found)


def test_the_logs_of_all_workers_stand_behind_their_ranks(cluster: Cluster, tmp_path: Path) -> None:
    command = ("sh", "-c", "echo out of $RANK; printf 'no end' >&2; exec sleep 1000")
    for name in "ab":
        flags = ("--nnodes", "2", "--nproc-per-node", "2", "--log-dir", str(tmp_path / name))
        cluster.join(name, *flags, command=command)
    written(tmp_path, cluster, 8)
    out, err = logs(cluster)
    ranks = re.findall(r"^\[\S+ rank (\d)\] (?:out of \1|no end)$", out, re.MULTILINE)
    assert (ranks, err) == (["0", "0", "1", "1", "2", "2", "3", "3"], "")
    assert logs(cluster, "--rank", "1", "--stream", "stdout") == ("out of 1\n", "")
    assert logs(cluster, "--rank", "3", "--stream", "stderr", "--last", "3B") == ("end", "")
    out, _ = logs(cluster, "--node", "b", "--stream", "stdout", "--last", "all", "--json")
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["out of 2\n", "out of 3\n"]
    status = cluster.coordinator.job(cluster.job)
    assert status is not None
    [folder] = (tmp_path / "a").iterdir()
    assert status["nodes"][0]["log_dir"] == str(folder)


def test_who_follows_reads_on_over_a_restart_to_the_last_line(cluster: Cluster, tmp_path: Path) -> None:
    gate, end = tmp_path / "gate", tmp_path / "end"
    run("mkfifo", gate, *(f"{end}.{rank}" for rank in (0, 1)))
    script = SAYS.format(gate=gate, end=end)
    flags = ("--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", str(tmp_path / "logs"))
    node = cluster.join("a", *flags, command=("sh", "-c", script))
    written(tmp_path, cluster, 4)
    with Program(
        BIN / "nodeclient", "logs", "--coord", cluster.coordinator.endpoint, cluster.job, "--follow", "--last", "1"
    ) as follow:
        follow.await_line(r"\[\S+ rank 1\] trouble of 1")
        gate.write_text("go\n")
        follow.await_line("nodeclient: round 2 begins")
        follow.await_line(r"\[\S+ rank 1\] round 2 of 1")
        for rank in (0, 1):
            Path(f"{end}.{rank}").write_text("go\n")
        assert node.wait() == 0
        assert follow.wait() == 0
        for rank in (0, 1):
            follow.await_line(rf"\[\S+ rank {rank}\] last of {rank}")
        assert "look on host" not in follow.output
    gone = rf"nodeclient: node a is not connected: its logs are on host \S+ in {tmp_path}/logs/\S+\n"
    wait_until("the end of its connection", lambda: re.fullmatch(gone, "".join(logs_of_ended(cluster))))


def logs_of_ended(cluster: Cluster, *flags: str) -> tuple[str, str]:
    ended = run(BIN / "nodeclient", "logs", "--coord", cluster.coordinator.endpoint, cluster.job, *flags)
    assert ended.returncode == 69
    return ended.stdout, ended.stderr


def test_a_node_without_log_files_says_what_to_do(cluster: Cluster) -> None:
    cluster.join("a", "--nnodes", "1")
    cluster.await_round(1)
    out, err = logs_of_ended(cluster)
    text = "node a keeps no log files: start its nodeclient with --log-dir DIR, or set NODECLIENT_LOG_DIR"
    assert (out, err) == ("", f"nodeclient: {text}\n")
    out, err = logs_of_ended(cluster, "--json")
    assert ([json.loads(line)["note"] for line in out.splitlines()], err) == ([text], "")


def a_part(text: str) -> dict[str, object]:
    return {"rank": 0, "stream": "stdout", "host": "gpu1.example", "node": "a", "text": text}


def test_what_was_written_does_not_steer_a_terminal() -> None:
    parts = [a_part("a\x1b[31mred\x1b[0m\x1b[2J\x1b]0;"), a_part("title\x07\n 1 %\r 2 %\r100 %\nb\x9b2J")]
    with (
        canned(stream(*parts, {"over": True})) as (coord, _),
        on_terminal(BIN / "nodeclient", "logs", "--coord", coord, "m") as terminal,
    ):
        assert terminal.wait() == 0
        lines = terminal.screen.text.rstrip().splitlines()
        assert lines == [f"[gpu1 rank 0] {text}" for text in ("ared]0;title", "100 %", "b2J")]
        assert "31" in terminal.screen.colours


def test_the_run_the_round_and_the_worker_that_are_named_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--run", "e-1", "--round", "2", "--rank", "0", "--stream", "stdout", "--last", "5")
    with canned(stream({"over": True})) as (coord, asked):
        assert command_at(coord, "logs", *flags, "m") == 0
    assert asked == ["GET /v1/jobs/m/logs?stream=stdout&follow=false&rank=0&run=e-1&round=2&last=5"]
    assert capsys.readouterr() == ("", "nodeclient: job m has written nothing there yet\n")


def test_half_a_character_is_no_answer_of_a_coordinatord() -> None:
    with canned(stream(a_part("\ud800"))) as (coord, _):
        ended = run(BIN / "nodeclient", "logs", "--coord", coord, "m")
    assert (ended.returncode, ended.stdout) == (69, "")
    assert ended.stderr == f"nodeclient: {coord}: does not send events as a coordinatord does\n"


def test_a_stream_that_breaks_off_is_an_error() -> None:
    with canned(stream(a_part("one\n"))) as (coord, _):
        ended = run(BIN / "nodeclient", "logs", "--coord", coord, "m")
    assert (ended.returncode, ended.stdout) == (69, "[gpu1 rank 0] one\n")
    assert ended.stderr == f"nodeclient: {coord}: it has closed the connection\n"


def test_a_directory_that_cannot_be_written_ends_the_node_before_it_joins() -> None:
    flags = ("--coord", "127.0.0.1:1", "--join-timeout", "1", "--log-dir", "/dev/null/logs")
    ended = run(BIN / "nodeclient", "join", *flags, "--", "true")
    text = "log files cannot be written to /dev/null/logs/default: Not a directory; see --log-dir"
    assert ended.stderr.splitlines()[-1].endswith(text)
    assert ended.returncode == 74
