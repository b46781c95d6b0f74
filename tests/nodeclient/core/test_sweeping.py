"""How long a node waits for memory of GPUs between two rounds, and what it says of that."""

import pytest
from msgspec.structs import replace

from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.messages import Goal, Phase
from nodeclient.core.effects import Level, Notice, Start, Sweep
from nodeclient.core.events import GpusInUse
from nodeclient.core.host_health import GpuProcess, GpuUse
from nodeclient.core.sweeping import FREE_BYTES, FREE_WITHIN_S, SAMPLE_MAX_S, SAMPLE_MIN_S
from tests.support.bench import SETTINGS, Bench

GIB = 1 << 30

UNSEEN = GpuUse("nvidia0", 60 * GIB)
DYING = GpuUse("nvidia0", 60 * GIB, (GpuProcess(7, "ann", left_behind=True),))
ALIVE = GpuUse("nvidia0", 60 * GIB, (GpuProcess(7, "ann", left_behind=True), GpuProcess(8, "bob", left_behind=False)))

PATIENT = replace(SETTINGS, stop_timeout_s=30.0)

HELD = "memory of GPUs is in use: 60.0 GiB of nvidia0"


def stopped(bench: Bench | None = None) -> Bench:
    """Bring a round to where its workers are dead, and another one is to follow."""
    bench = bench or Bench(PATIENT).running()
    bench.exited(0, 1)
    bench.exited(1, -9)
    return bench


def again(bench: Bench) -> Bench:
    """Bring the next round to the same place."""
    bench.receive(Goal.RUN, round=bench.agent.round + 1)
    bench.started()
    return stopped(bench)


@pytest.mark.parametrize(
    ("use", "who"),
    [(UNSEEN, " by no process that this node sees"), (DYING, " by process 7 of ann")],
    ids=["unseen", "dying"],
)
def test_a_node_waits_for_memory_that_may_be_given_back(use: GpuUse, who: str) -> None:
    bench = stopped()
    notice = f"{HELD}{who}; the next round waits for 50 s at most"
    assert bench.gpus_in_use(use) == [Notice(Level.INFO, notice, "gpu_memory_in_use")]
    assert bench.observed.held_up == f"{HELD}{who}"
    for _ in range(3):
        bench.receive(Goal.RUN, round=2)
        assert bench.agent.phase is Phase.STOPPING
        assert Sweep() in bench.advance(SAMPLE_MAX_S)
        assert bench.gpus_in_use(use) == [], "it is said once"
        bench.receive(Goal.RUN, round=2)
    bench.advance(SAMPLE_MAX_S)
    bench.swept()
    assert bench.count(Start) == 2
    assert not bench.observed.held_up


@pytest.mark.parametrize("held_s", [0.0, 0.2, 0.5, 3.0])
def test_a_round_waits_little_longer_than_the_driver(held_s: float) -> None:
    bench = stopped()
    began_at = bench.now
    while bench.now - began_at <= held_s:
        bench.gpus_in_use(UNSEEN)
        while Sweep() not in bench.advance(0.01):
            pass
    assert bench.now - began_at <= held_s + max(SAMPLE_MIN_S, min(held_s / 2, SAMPLE_MAX_S)) + 0.02


def test_a_wait_that_is_over_names_who_has_the_memory() -> None:
    bench = stopped()
    began_at = bench.now
    while bench.gpus_in_use(UNSEEN)[-1:] != [Sweep(checks_gpus=False)]:
        bench.advance(SAMPLE_MAX_S)
    assert bench.now - began_at == pytest.approx(FREE_WITHIN_S)
    text = f"{HELD} by no process that this node sees"
    assert bench.last(Notice) == Notice(
        Level.WARNING, f"{text}; the next round begins all the same, and may lack that memory", "gpu_memory_in_use"
    )
    bench.swept()
    again(bench)
    [notice] = bench.gpus_in_use(UNSEEN)
    assert notice == Notice(Level.INFO, f"{text}; the next round waits for 50 s at most", "gpu_memory_in_use")


@pytest.mark.parametrize("save_within_s", [0.0, 25.0])
@pytest.mark.parametrize("stop_timeout_s", [0.0, 10.0, 30.0])
def test_no_coordinator_gives_up_a_node_that_waits_and_then_computes_digests(
    stop_timeout_s: float, save_within_s: float
) -> None:
    bench = Bench(replace(SETTINGS, stop_timeout_s=stop_timeout_s)).running()
    bench.keep(save_within_s)
    began_at = bench.now
    stopped(bench)
    while bench.gpus_in_use(UNSEEN)[-1:] != [Sweep(checks_gpus=False)]:
        bench.advance(SAMPLE_MAX_S)
    overdue_at = began_at + stop_timeout_s + Policy().stop_limit_s
    assert bench.now + save_within_s < overdue_at - Policy().heartbeat_s


def test_what_was_in_use_before_the_first_round_is_said_and_never_waited_for() -> None:
    assert Bench().submit(GpusInUse(())) == []
    bench = Bench()
    said = f"{HELD} by process 7 of ann, process 8 of bob"
    assert bench.submit(GpusInUse((ALIVE,))) == [Notice(Level.WARNING, said, "gpu_memory_in_use")]
    stopped(bench.running())
    assert bench.gpus_in_use(UNSEEN) == [Sweep(checks_gpus=False)]
    bench.swept()
    again(bench)
    [notice] = bench.gpus_in_use(GpuUse("nvidia0", UNSEEN.used_bytes + FREE_BYTES + 1))
    assert isinstance(notice, Notice), "there is more than before"


def test_a_process_that_lives_may_never_give_its_memory_back_so_it_is_named_and_not_waited_for() -> None:
    bench = stopped()
    [notice, sweep] = bench.gpus_in_use(ALIVE)
    text = f"{HELD} by process 7 of ann, process 8 of bob"
    assert notice == Notice(
        Level.WARNING, f"{text}; the next round begins all the same, and may lack that memory", "gpu_memory_in_use"
    )
    assert sweep == Sweep(checks_gpus=False)


def test_the_first_processes_of_many_are_named() -> None:
    bench = stopped()
    bench.gpus_in_use(GpuUse("nvidia1", GIB, tuple(GpuProcess(pid, "ann", left_behind=True) for pid in range(6))))
    named = ", ".join(f"process {pid} of ann" for pid in range(4))
    assert bench.observed.held_up == f"memory of GPUs is in use: 1.0 GiB of nvidia1 by {named} and 2 more"


def test_a_node_that_is_asked_to_leave_waits_no_longer() -> None:
    bench = stopped()
    bench.gpus_in_use(UNSEEN)
    bench.leave()
    assert bench.advance(SAMPLE_MAX_S)[-1:] == [Sweep(checks_gpus=False)]
