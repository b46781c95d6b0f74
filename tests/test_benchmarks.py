"""Every benchmark runs, in a short form, and what it counts is what is expected of it. Times are not looked at.

What a change of the protocol, of the machine or of the store may change are the numbers at the top, and nothing else.
"""

import importlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from coordinatord.core.watching.arrivals import EVERY_S
from coordinatord.runtime import __version__
from tests.support.etcd import needs_etcd
from tests.support.programs import TIMEOUT_S

pytestmark = pytest.mark.slow


ROOT = Path(__file__).resolve().parents[1]

recovery_parts: Any = importlib.import_module("benchmarks.recovery_parts")
"""Not imported as others are, since for mypy it is a script beside other scripts."""
recovery_jobs: Any = importlib.import_module("benchmarks.recovery_jobs")
scores: Any = importlib.import_module("rivals.score")

JOIN_MESSAGES_FROM = 2
"""The messages of each node: its join, and that its workers run."""
JOIN_MESSAGES_TO = (1, 2)
"""The messages to each node: wait, unless a round is formed before that is sent, and run."""
JOIN_BYTES_FROM = 926 + len(__version__)
JOIN_BYTES_TO_MOST = 957
"""A wait has texts of different lengths, by how many have come."""

REFORM_MESSAGES_FROM = 2
"""The messages of each node: that its workers have stopped, and that they run."""
REFORM_MESSAGES_TO = 2
"""The messages to each node: stop and run."""
REFORM_BYTES_FROM = 466
REFORM_BYTES_TO = {16: 814, 64: 815}
"""One more for each digit more that a count has."""
REFORM_COMMITS = 3
"""The loss with the stop; the end of the old round with the new one; that its workers are started."""
REFORM_RECORDS = 5

BEAT_BYTES = 233
BEAT_ANSWER_BYTES = {4: 540, 128: 604}
"""The bytes of a heartbeat, and of its answer by the number of nodes that run: its text names some of them."""

BEYOND_EMPTY_MOST = 0.5
"""The processor time of a start on 60 jobs that are over, as a part of an empty one's: ten times what was measured."""

LOOK_BYTES_MOST = 1_000_000
"""The most that the workers of a job of a thousand may send at once."""

LATE_STEPS_MOST = 50
"""A worker that is slow is to be named within so many steps."""

HEARTBEAT_COST_MOST = 4.0
"""The processor time of a heartbeat, as a multiple of a bare echo's: twice what has been measured."""


def run(
    benchmark: str, folder: Path, *flags: str, repeat: tuple[str, ...] = ("--repeat", "1")
) -> tuple[str, list[Any]]:
    """Run a benchmark; return what it printed and what it reported. It fails by itself where promises are broken."""
    report = folder / f"{benchmark}.json"
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", *repeat, "--json", str(report), *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=4 * TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert found["benchmark"] == benchmark
    assert found["versions"]["aiohttp"]
    return done.stdout, found["runs"]


@pytest.fixture(scope="module")
def rendezvous(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """Run it with 16 and with 64 nodes."""
    printed, runs = run("rendezvous", tmp_path_factory.mktemp("rendezvous"), "--nodes", "16,64")
    assert "64 nodes, 1 run" in printed
    return {run["nodes"]: run for run in runs}


@pytest.mark.parametrize("nodes", [16, 64])
def test_a_node_joins_with_few_and_small_messages(rendezvous: dict[int, Any], nodes: int) -> None:
    join = rendezvous[nodes]["join"]
    assert join["messages_from_node"] == JOIN_MESSAGES_FROM
    assert join["messages_to_node"] in JOIN_MESSAGES_TO
    assert join["bytes_from_node"] == JOIN_BYTES_FROM
    assert join["bytes_to_node"] <= JOIN_BYTES_TO_MOST
    # Those who come while one is being written share the next commit, so how many there are is chance.
    assert join["records"] == nodes + 3, "the run, each node, the round, its start"
    assert join["commits"] < join["records"]


@pytest.mark.parametrize("nodes", [16, 64])
def test_a_new_round_costs_each_node_one_stop_and_one_run(rendezvous: dict[int, Any], nodes: int) -> None:
    reform = rendezvous[nodes]["reform"]
    assert reform["messages_from_node"] == REFORM_MESSAGES_FROM
    assert reform["messages_to_node"] == REFORM_MESSAGES_TO
    assert reform["bytes_from_node"] == REFORM_BYTES_FROM
    assert reform["bytes_to_node"] == REFORM_BYTES_TO[nodes]
    assert (reform["commits"], reform["records"]) == (REFORM_COMMITS, REFORM_RECORDS), "whatever the size"


@pytest.mark.long
@needs_etcd
def test_a_new_round_costs_etcd_the_same(tmp_path: Path) -> None:
    _, [found] = run("rendezvous", tmp_path, "--nodes", "16", "--etcd", "1")
    reform = found["reform"]
    assert (reform["commits"], reform["records"]) == (REFORM_COMMITS, REFORM_RECORDS)
    assert (reform["messages_from_node"], reform["messages_to_node"]) == (REFORM_MESSAGES_FROM, REFORM_MESSAGES_TO)


def test_an_idle_node_costs_one_small_message_each_way_a_heartbeat(tmp_path: Path) -> None:
    _, [idle] = run("idle", tmp_path, "--nodes", "4", "--seconds", "1.5")
    beats = idle["beats"]
    assert beats["answers"] > 0
    sent, rest = divmod(beats["bytes_to_coordinator"], BEAT_BYTES)
    assert rest == 0, "something else was sent, or a heartbeat has another size"
    assert abs(sent - beats["answers"]) <= 4, "each node may have one under way at either end of the time"
    assert beats["bytes_from_coordinator"] == beats["answers"] * BEAT_ANSWER_BYTES[4]


@pytest.mark.long
def test_a_heartbeat_costs_no_more_than_a_few_bare_messages(tmp_path: Path) -> None:
    _, runs = run("throughput", tmp_path, "--clients", "128", "--seconds", "0.2", "--repeat", "3")
    assert {flows["bytes_to_server"] for flows in runs} == {BEAT_BYTES}
    assert {flows["bytes_from_server"] for flows in runs} == {BEAT_ANSWER_BYTES[128]}
    costs = [[flows[side]["cpu_s"] / flows[side]["messages"] for side in ("coordinatord", "echo")] for flows in runs]
    assert median(ours / bare for ours, bare in costs) < HEARTBEAT_COST_MOST


def test_policies_for_failures_are_compared_on_drawn_faults(tmp_path: Path) -> None:
    picture = tmp_path / "policy.svg"
    printed, runs = run("policy", tmp_path, "--days", "2", "--svg", str(picture))
    assert "time that makes progress" in printed
    ours = {each["family"]: each for each in runs if each["rules"] == "coordinatord"}
    assert len(runs) == 4 * len(ours) == picture.read_text().count("<circle"), "with --repeat 1"
    assert ours["poison script"]["quarantined"] == 0
    assert ours["bug at the start"]["bug_rounds"] == ours["bug after a day"]["bug_rounds"] == 2
    assert [each for each in runs if each["ettr"] > ours[each["family"]]["ettr"] + 0.001] == []


@pytest.mark.long
def test_nobody_is_lost_while_others_join(tmp_path: Path) -> None:
    flags = ("--members", "8", "--nodes", "100", "--within", "1", "--quiet", "1")
    _, [storm] = run("storm", tmp_path, *flags)
    assert storm["lost"] == 0
    assert storm["quiet"]["beats"]["answers"] > 0
    assert storm["storm"]["beats"]["answers"] > 0


@pytest.mark.long
def test_processes_that_take_part_in_many_rounds_hold_no_more_than_before(tmp_path: Path) -> None:
    printed, [result] = run("rounds", tmp_path, "--rounds", "24")
    assert "24 rounds of 2 workers" in printed
    assert result["processes"] == 2, "all rounds but the first were begun in place"
    assert result["last_kib"] < result["first_kib"] + 20 * 1_024
    for what in ("threads", "descriptors"):
        first, last = result[what]
        assert last < first + 12, f"{what} of 2 processes, one more in each round would be 12 more"
    for before, after in zip(result["beside_first"], result["beside_last"], strict=True):
        assert after["program"] in printed
        assert after["own_kib"] < before["own_kib"] + 10 * 1_024, after
        assert after["descriptors"] < before["descriptors"] + 12, f"{after}: one more in each round would be 14 more"


@pytest.mark.long
def test_a_thousand_workers_are_asked_with_less_than_a_megabyte(tmp_path: Path) -> None:
    _, [found] = run("stacks", tmp_path, "--ranks", "1000")
    assert found["sentence"].startswith("rank 333 on node ")
    assert found["sentence"].endswith("the 999 others wait in all_reduce 120,417")
    assert 0 < max(found["bytes_of_look"], found["bytes_from_nodes"]) < LOOK_BYTES_MOST


@pytest.mark.long
def test_a_worker_is_named_that_cannot_answer_since_it_waits_for_a_disk(tmp_path: Path) -> None:
    flags = ("--kinds", "disk", "--layouts", "1x3")
    _, [found] = run("hangs", tmp_path, *flags)
    assert found["answer"] == "right", found["sentence"]
    assert run("hangs", tmp_path, *flags, "--resume")[1] == [found], "there is none to add"


@pytest.mark.long
def test_a_worker_that_is_slow_in_backward_is_named(tmp_path: Path) -> None:
    _, [found] = run("laggards", tmp_path, "--layouts", "3x1", "--part", "2")
    assert found["right"], found["sentence"]
    assert found["late_s"] > 0.1
    assert found["steps"] <= LATE_STEPS_MOST


@pytest.mark.long
def test_a_training_on_nodes_that_come_and_are_killed_has_the_losses_of_one_worker(tmp_path: Path) -> None:
    picture = tmp_path / "losses.svg"
    _, [found] = run("losses", tmp_path, "--changes", "2", "--dtypes", "float64", "--svg", str(picture))
    assert found["apart"] < 1e-6
    assert {1, 2, 3} == set(found["workers"])
    assert len(found["killed"]) == picture.read_text().count("<circle") == 1


@pytest.mark.long
def test_a_start_beside_jobs_that_are_over_costs_little_more_than_an_empty_one(tmp_path: Path) -> None:
    flags = ("--nodes", "40", "--over", "60", "--over-nodes", "8", "--rounds", "3")
    printed, [found] = run("restart", tmp_path, *flags)
    assert "40 nodes, 60 jobs of 8 nodes and 3 rounds that are over, 1 run" in printed
    # Each has its opening, joins, successes and end, and of each round its formation, start, stop and end.
    assert found["records"] == 60 * (2 + 2 * 8 + 4 * 3 - 2) + 43
    beyond = found["restored"]["cpu_s"] - found["empty"]["cpu_s"]
    assert beyond < BEYOND_EMPTY_MOST * found["empty"]["cpu_s"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("benchmark", "flags", "printed"),
    [
        ("idle", f"--nodes 2 --seconds {EVERY_S + 5}", "2 idle nodes"),
        ("kept", "--only more --side kept", "node joins, FSDP2 + AdamW, 10 MB"),
        ("kept_step", "--megabytes 2 --steps 60 --seconds 2", "a whole small step with batch norms"),
        ("output", "--workers 1,2 --lines 1000", "2 workers"),
        ("rendezvous", "--nodes 2 --torch --torch-within 3", "not within 3 s"),
        ("scrape", "--jobs 3 --nodes 2 --scrapes 1", "3 jobs with 6 nodes, 1 run"),
        ("step", "--calls 1000", "ctx.step(n), ns"),
        pytest.param("commit", "--commits 10 --joins 100", "100 joins in one commit, ms", marks=needs_etcd),
    ],
)
def test_it_runs(benchmark: str, flags: str, printed: str, tmp_path: Path) -> None:
    assert printed in run(benchmark, tmp_path, *flags.split())[0]


LINE = {"mark": "step", "at": 7.5, "step": 1, "pid": 9, "rank": 0, "world_size": 2, "round": "127.0.0.1:4"}


@pytest.mark.long
def test_training_goes_on_after_a_kill_and_every_part_of_the_pause_is_known(tmp_path: Path) -> None:
    flags = f"--nodes 1 --scenarios worker --sides cold --patience {TIMEOUT_S:.0f}".split()
    printed, [found] = run("recovery", tmp_path, *flags)
    assert (found["scenario"], found["side"], found["why_not"]) == ("worker", "cold", "")
    assert tuple(found["parts"]) == recovery_parts.STOPPED_PARTS
    assert sum(found["parts"].values()) == pytest.approx(found["seconds"])
    assert all(found["parts"][part] > 0 for part in ("import", "process group", "first step"))
    assert re.search(rf"^  worker killed -9 +{found['seconds']:.2f}$", printed, re.MULTILINE)


def test_a_round_of_before_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    job = recovery_jobs.Job("2:3", tmp_path, None)
    try:
        done = LINE | {"pid": os.getpid()}
        lines = [done | {"round": round_, "rank": rank} for round_ in ("first", "next") for rank in (0, 1)]
        (tmp_path / "marks").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        assert job.await_steps(1, 2) == "first"
        assert job.await_steps(1, 2, without={"first"}) == "next"
        assert job.await_steps(1, 2, without={"first", "next"}) == ""
    finally:
        job.close()


def round_of(name: str, first: int, last: int, began: float, world_size: int = 2) -> Iterator[Any]:
    """Yield the marks of a round with a step each second."""
    for step in range(first, last + 1):
        for rank in range(world_size):
            yield recovery_parts.Mark("step", began + step - first, step, 10 + rank, rank, world_size, name)


def test_every_kind_of_deed_comes_as_often_as_any_other() -> None:
    drawn = scores.draw_schedule(7, 18)
    assert set(Counter(planned.deed for planned in drawn).values()) == {3}
    assert drawn == scores.draw_schedule(7, 18) != scores.draw_schedule(8, 18)
    assert all(planned.after_s >= 4 and 0 <= planned.victim < 1 for planned in drawn)


def test_the_pause_the_steps_done_again_and_goodput_are_those_of_the_marks() -> None:
    deed, named = scores.Deed.KILL_WORKER, scores.Named
    # Steps 1 to 10 at 0 to 9 s, a pause, steps 8 to 10 again at 20 to 22 s, and new ones up to 20 at 32 s.
    marks = [*round_of("a", 1, 10, 0.0), *round_of("b", 8, 20, 20.0)]
    episode = scores.Episode(deed, 9.5, 32.0, by_hand=False, named=named.RIGHT)
    found = scores.score("x", marks, [episode])
    assert found.episodes == ((episode, 14.0, 3),), "from 9 to 23 s"
    assert (found.redone, found.by_hand, found.pauses(deed), found.named(named.RIGHT)) == (3, 0, [14.0], 1)
    assert found.goodput == pytest.approx(20 / 32)
    assert found.progress[-1] == (32.0, 20)
    assert scores.picture([found]).count("<polyline") == 1


@pytest.mark.long
def test_a_killed_worker_is_named_and_no_person_is_needed(tmp_path: Path) -> None:
    flags = ("--launcher", "coordinatord", "--deeds", "1", "--seed", "2")
    _, [played, bug] = run("rivals", tmp_path, *flags, repeat=())
    [[episode, pause_s, _]] = played["episodes"]
    assert (episode["deed"], episode["by_hand"], episode["named"]) == ("worker killed", False, "the victim")
    assert pause_s > 0
    assert bug["rounds"] == 2
    assert bug["ended_s"] is not None
