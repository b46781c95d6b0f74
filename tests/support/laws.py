"""What must be true of every history of the simulated world, checked after every event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinatord.core.effects import Record, RoundEnded, RoundFormed, RunEnded
from coordinatord.core.run import State
from coordinatord.core.words import Words
from coordinatord.wire.messages import Desired, Goal, Result
from nodeclient.core.effects import Start

if TYPE_CHECKING:  # the world imports its laws
    from tests.support.host import Host
    from tests.support.world import World

Round = tuple[str, int]
"""A run and the number of a round."""


class Laws:
    """Watches everything that happens; raises `AssertionError` at the first thing that must not be."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.formed: dict[Round, RoundFormed] = {}
        self.ended: dict[str, RunEnded] = {}
        self.genuine: set[Round] = set()
        """Rounds in which a worker failed of itself."""
        self.unseen: set[Round] = set()
        """Rounds of which a node ended its workers while it could not be heard: the coordinator cannot know what came
        first, because what the node had said before arrives late."""
        self._told: dict[tuple[str, int, str], int] = {}
        """The latest round of each run that an incarnation of a node has heard of."""
        self._succeeded: dict[Round, int] = {}
        """How many workers of a round have exited with 0."""

    # The coordinator's side

    def judge(self, records: Sequence[Record]) -> None:
        """Check what the coordinator has decided, and where it stands now."""
        for record in records:
            assert record.reason, record
            match record:
                case RoundFormed():
                    self._judge_formed(record)
                case RoundEnded():
                    self._judge_ended(record)
                case RunEnded():
                    self._judge_run(record)
        self._judge_state()

    def _judge_formed(self, record: RoundFormed) -> None:
        earlier = [number for run, number in self.formed if run == record.run]
        assert record.round > max(earlier, default=0), "rounds must be numbered upward"
        assert len(set(record.nodes)) == len(record.nodes), "a node twice in a round"
        spec = self._world.spec
        assert spec.nodes_min <= len(record.nodes) <= spec.nodes_max
        run = self._world.coordinator.jobs[record.job]
        ranks: list[int] = []
        for node, workers in zip(record.nodes, record.workers, strict=True):
            part = run.assignments[node]
            assert (part.group_world_size, part.world_size) == (len(record.nodes), sum(record.workers))
            ranks += range(part.first_rank, part.first_rank + workers)
        assert ranks == list(range(sum(record.workers))), "ranks must be given once each, from 0 upward"
        self.formed[record.run, record.round] = record

    def _judge_ended(self, record: RoundEnded) -> None:
        if record.charged:
            known = self.genuine | self.unseen
            assert (record.run, record.round) in known, f"charged without a failure: {record.reason}"

    def _judge_run(self, record: RunEnded) -> None:
        assert record.run not in self.ended, "a run ended twice"
        self.ended[record.run] = record
        if record.outcome.result is Result.SUCCEEDED:
            last = max(number for run, number in self.formed if run == record.run)
            workers = sum(self.formed[record.run, last].workers)
            assert self._succeeded.get((record.run, last), 0) == workers, "succeeded before all workers had"
        assert (record.outcome.result is Result.SUCCEEDED) == (record.outcome.exit_code == 0)

    def _judge_state(self) -> None:
        for run in self._world.coordinator.jobs.values():
            assert run.restarts_used <= run.spec.max_restarts, "the budget is overdrawn"
            inside = {member.node for member in run.members.values() if member.in_round}
            assert inside <= set(run.order)
            assert run.reason
            if run.state is State.FORMING:
                assert not inside, "a node of no round is in the round"

    # The nodes' side

    def told(self, host: Host, desired: Desired) -> None:
        """Check what a node is told."""
        assert desired.reason, f"{host.name} is told nothing about why"
        if desired.goal is Goal.RUN:
            assert host.name in self.formed[desired.run, desired.round].nodes
        key = (host.name, host.incarnation, desired.run)
        self._told[key] = max(self._told.get(key, 0), desired.round)

    def starts(self, host: Host, start: Start) -> None:
        """Check that a node may start a round."""
        assert not host.workers, f"{host.name} starts round {start.round} over living workers of {host.round}"
        assert start.round == self._told[host.name, host.incarnation, start.run], f"{host.name} starts an old round"
        assert (start.run, start.round) != host.round, f"{host.name} starts a round twice"
        assert host.name in self.formed[start.run, start.round].nodes

    def worker_ended(self, host: Host, exit_code: int) -> None:
        """Take note of a worker's end."""
        if exit_code == 0:
            self._succeeded[host.round] = self._succeeded.get(host.round, 0) + 1

    # In the end

    def judge_end(self) -> None:
        """Check that nothing is stuck, some time after the last fault with the network healed."""
        for run in self._world.coordinator.jobs.values():
            assert run.state.ended or run.state is State.RUNNING, f"stuck: {run.state}: {Words(run).situation}"
        for host in self._world.hosts.values():
            if host.exit is not None and host.exit.code == 0:
                assert any(ended.outcome.result is Result.SUCCEEDED for ended in self.ended.values())
