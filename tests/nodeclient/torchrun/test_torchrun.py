"""Real torchrun processes on coordinatord: restarts, lost nodes, more and fewer nodes, and tokens."""

import os
import secrets
import signal
import sys
from pathlib import Path

import pytest

from nodeclient.access.keyring import CREDENTIAL
from tests.support.cluster import Coordinator
from tests.support.places import Place
from tests.support.programs import BIN, Program, kill_quietly
from tests.support.torchruns import FORKED, HERE, NEEDS_BACKENDS, Torchrun, Torchruns

pytestmark = [pytest.mark.slow, NEEDS_BACKENDS]

RESTARTS = int(os.environ.get("TORCHRUN_RESTARTS", "3"))
"""How often a real job is restarted; torchrun's own backend fails, or hangs, in most of the first ones. `make long`
restarts one more often."""

TRAINING = (*FORKED, str(HERE / "allreduce.py"))


def new_job() -> str:
    return f"job-{secrets.token_hex(4)}"


def test_a_job_with_real_collectives_is_restarted_many_times(torchruns: Torchruns, coordinator: Coordinator) -> None:
    job = new_job()
    script = (*FORKED, str(HERE / "restarting.py"), str(RESTARTS))
    nodes = [torchruns.start(job, "--nnodes=2", f"--max-restarts={RESTARTS}", *script) for _ in range(2)]
    assert [node.wait(RESTARTS * 12 + 60) for node in nodes] == [0, 0]
    sums = {(event["round"], event["rank"]): event["sum"] for node in nodes for event in node.events}
    assert sums == {(number, rank): 2 for number in range(1, RESTARTS + 2) for rank in range(2)}
    assert coordinator.await_job(job, state="succeeded")["restarts"]["used"] == RESTARTS


@pytest.mark.long
def test_three_nodes_go_on_without_the_one_of_rank_0_and_then_with_another(
    torchruns: Torchruns, coordinator: Coordinator
) -> None:
    job = new_job()

    def join() -> Torchrun:
        return torchruns.start(job, "--nnodes=1:3", "--max-restarts=3", *TRAINING)

    nodes = [join() for _ in range(3)]
    a, b, c = sorted(nodes, key=lambda node: node.await_sum(3)["rank"])

    whole = a.await_sum(3)
    a.process.kill()
    begun = b.await_sum(2, whole)
    assert (begun["rank"], c.await_sum(2, whole)["rank"]) == (0, 1)

    d = join()
    grown = d.await_sum(3)
    assert (grown["rank"], b.await_sum(3, begun)["rank"], c.await_sum(3, begun)["rank"]) == (2, 0, 1)

    c.signal(signal.SIGTERM)
    assert c.wait() == 1  # torchrun's own code after a signal
    shrunk = b.await_sum(2, grown)
    assert (shrunk["rank"], d.await_sum(2, grown)["rank"]) == (0, 1)
    coordinator.await_line(rf"left the job, as asked.* job={job} ")  # a peer's failure may be heard first

    kill_quietly(shrunk["pid"], signal.SIGUSR1)
    assert (b.wait(), d.wait()) == (0, 0)
    coordinator.await_job(job, state="succeeded")
    d.await_line(f"job {job}: connected to the coordinator at {coordinator.endpoint}")


def torchrun(place: Place, **environ: str) -> Program:
    """Start one as somebody who has no token, but for what is in the environment."""
    rendezvous = ("--rdzv-backend=coordinatord", f"--rdzv-endpoint={place.endpoint}", "--rdzv-id=j")
    run = (sys.executable, BIN / "torchrun", *rendezvous, "--nnodes=1", "--no-python", "sh", "-c")
    return place.start(*run, "echo token: $NODECLIENT_TOKEN.", environ={**place.stranger, **environ})


def test_torchrun_shows_the_token_that_systemd_hands_to_it(place: Place, tmp_path: Path) -> None:
    place.coordinator()
    place.token("new", "--output", str(tmp_path / CREDENTIAL))
    node = torchrun(place, CREDENTIALS_DIRECTORY=str(tmp_path))
    assert node.wait() == 0, node.output
    assert "succeeded" in place.ask("status").stdout


def test_torchrun_keeps_a_token_from_its_workers(place: Place) -> None:
    place.coordinator()
    node = torchrun(place, NODECLIENT_TOKEN=place.token("new"))
    assert node.wait() == 0, node.output
    assert "token: ." in node.lines


@pytest.mark.long
def test_who_has_none_hears_of_what_torchrun_has(place: Place) -> None:
    place.coordinator()
    torchrun(place).await_line("wants a token, and there is none here: .* by the variable NODECLIENT_TOKEN_FILE")
