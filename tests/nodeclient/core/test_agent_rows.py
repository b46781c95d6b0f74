"""Whatever comes in whatever order, the agent has a row for it, and requests nothing that it must not."""

import random
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from coordinatord.protocol.kept_state import Halt
from coordinatord.protocol.messages import Goal, Phase
from nodeclient.core.table import TABLE
from tests.support.bench import SETTINGS, Bench
from tests.support.builders import LOST_PEER
from tests.support.rows import node_rows_taken

SEEDS = 2_500
STEPS = 120


def possible(bench: Bench, chance: random.Random, *, elastic: bool) -> list[Callable[[], object]]:
    """Return the events that may happen next, of those that the agent's shell and any coordinator can cause."""
    run, round_ = bench.agent.run or "e-1", bench.agent.round
    goal, ahead = (
        chance.choice([*Goal] if chance.random() < 0.2 else [Goal.WAIT, Goal.RUN, Goal.STOP]),
        chance.randrange(2),
    )
    moves: list[Callable[[], object]] = [
        bench.open,
        bench.close,
        lambda: bench.advance(chance.choice([0.0, 0.1, 1.0, 8.0])),
        lambda: bench.receive(goal, run=run, round=round_ + ahead, planned=chance.random() < 0.5),
    ]
    if chance.random() < 0.1:
        moves += [bench.leave, lambda: bench.refused(retry=chance.random() < 0.8), lambda: bench.advance(40.0)]
        moves += [lambda: bench.receive(Goal.RUN, run=f"{run}+", round=1)]
    if bench.agent.phase is Phase.STOPPING and chance.random() < 0.3:
        moves += [lambda: bench.receive(Goal.EXIT, run=run, round=round_), lambda: bench.refused(retry=False)]
    if bench.agent.phase is Phase.PREPARING:
        moves += [bench.prepared]
    if bench.starting:
        # They are started one after the other, so a worker that has ended had been started, and so had those before.
        begun = max(set(range(bench.settings.workers)) - bench.alive, default=-1) + 1
        moves += [bench.started]
        moves += [partial(bench.start_failed, rank) for rank in range(begun, bench.settings.workers)]
    if bench.settings.keeps and bench.agent.phase.has_workers:
        moves += [lambda: bench.keep(chance.choice([0.1, 1.0]))] * 4
        moves += [bench.saved, partial(bench.saved, put_off=True), *[lambda: bench.advance(6.0)] * 2]
        halt = chance.choice([Halt(None), Halt(7)])
        moves += [lambda: bench.receive(Goal.STOP, run=run, round=round_, planned=True, halt=halt)] * 4
    if bench.alive:
        moves += [lambda: bench.exited(chance.choice(sorted(bench.alive)), chance.choice([0, 0, 0, 1, -9]))] * 3
    if bench.alive and elastic:
        moves += [lambda: bench.stays(*sorted(bench.alive), able=chance.random() < 0.9)] * 2
        moves += [lambda: bench.left(chance.choice(sorted(bench.alive)))] * 2
        moves += [lambda: bench.loses_peer(chance.choice(sorted(bench.alive)), LOST_PEER)]
        moves += [lambda: bench.refuses(chance.choice(sorted(bench.alive)))] if chance.random() < 0.1 else []
    if bench.parked:
        moves += [lambda: bench.held_exited(chance.choice(sorted(bench.parked)))] if chance.random() < 0.2 else []
    if bench.sweeping and not bench.starting:
        moves += [bench.swept] * 3
        moves += [bench.sweep_failed]
    return moves


def explore(seed: int) -> Bench:
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    bench = Bench(replace(SETTINGS, preloads=seed % 2 == 0, keeps=seed % 3 == 0))
    for _ in range(STEPS):
        if bench.agent.exited:
            break
        chance.choice(possible(bench, chance, elastic=seed % 5 == 1))()
    return bench


def settle(bench: Bench) -> None:
    """Let everything that is under way come to its end, with the coordinator wanting an exit."""
    bench.receive(Goal.EXIT, run=bench.agent.run, round=bench.agent.round + 1)
    for _ in range(10):
        if bench.starting:
            bench.started()
        bench.all_exited(0)
        if bench.sweeping:
            bench.swept()


def test_any_sequence_of_events_keeps_the_contract_and_can_be_ended_and_all_take_every_row() -> None:
    with node_rows_taken() as taken:
        for seed in range(SEEDS):
            bench = explore(seed)
            settle(bench)
            assert bench.agent.exited, seed
            assert bench.agent.next_deadline() is None, "its timer would fire again and again"
    assert not [f"{phase}: {stimulus}" for phase, stimulus in TABLE if (phase, stimulus) not in taken]
