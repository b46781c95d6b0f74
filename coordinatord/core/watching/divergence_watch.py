"""Finds ranks whose parameters differ from those of others although they should be equal: a GPU computes wrong values.

Workers make a digest of their parameters and optimizer state every so many steps, and nodes report each worker's last
digest. All ranks with the same *shard*, a part of the state, should have the same digest: with DDP, all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from coordinatord.core.rounds.queries.past_round import has_no_restart_left
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import ReplicasDiverged
from coordinatord.core.rounds.values.root_cause import WorkerFailure
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.fields import CONSEQUENCES_MAX, SENTENCE_MAX
from coordinatord.protocol.kept_state import StateDigest
from coordinatord.protocol.messages import Failure, OnDivergence
from coordinatord.protocol.text import clip, name_ranks, name_some

STEPS_MAX = 4
"""The most steps whose digests are held until all ranks have reported them. A node repeats a step's digest for several
heartbeats. So a rank that has not reported a step before four later steps are known makes no digests, or makes them of
other steps. The oldest step is then compared without that rank."""

UNCLEAR_MAX = 32
"""The most steps in a row whose difference is left open, since ranks that have not reported them could show which ranks
are wrong. Mostly these ranks soon report a step that all others report as well. Otherwise they make no digests, or one
while others make more than 32: on a busy host the first digest may be slow, and the slower it was, the later the rank
makes the second."""


class Divergence(Struct, frozen=True):
    """A step of which ranks had different states, although they should have had the same."""

    step: int
    agreed: int | None
    """The last step of the round of which all ranks had the right state; None if none is known."""
    ranks: tuple[int, ...]
    """The ranks that differ from the majority of their shard. Without a majority: all ranks of differing shards."""
    others: int
    """How many ranks the majorities have; 0 if there is none, so that nobody can say which ranks are wrong."""


@dataclass(slots=True)
class DivergenceWatch:
    """The digests of one round, and the first difference between them."""

    found: Divergence | None = None
    """The first difference; None while there is none. Nothing is compared after it: one record a round is enough."""
    agreed: int | None = None
    """The last step of which all ranks had the same state."""
    _digests: dict[int, dict[int, StateDigest]] = field(default_factory=dict)
    """The digests of steps after `_compared`, by step and rank."""
    _compared: int = -1
    """The last step that was compared."""
    _unclear: int = 0
    """How many steps in a row up to the last were left open, see `UNCLEAR_MAX`."""

    def record(self, first_rank: int, digests: Sequence[StateDigest | None], world_size: int) -> None:
        """Record the digests of a node's ranks, from `first_rank` upward, in a round of `world_size` ranks."""
        for rank, digest in enumerate(digests, first_rank):
            if digest is not None and digest.step > self._compared and self.found is None:
                of_step = self._digests.setdefault(digest.step, {})
                of_step[rank] = digest
                if len(of_step) == world_size:
                    self._compare(digest.step, world_size)
        while len(self._digests) > STEPS_MAX and self.found is None:
            self._compare(min(self._digests), world_size)

    def _compare(self, step: int, world_size: int) -> None:
        """Compare the digests of a step, and forget them and those of earlier ones."""
        missing = world_size - len(self._digests[step])
        ranks, others = _differing(self._digests[step], missing)
        self._compared = step
        self._digests = {later: digests for later, digests in self._digests.items() if later > step}
        self._unclear = self._unclear + 1 if ranks and missing and not others else 0
        if ranks and (not self._unclear or self._unclear > UNCLEAR_MAX):
            self.found = Divergence(step, self.agreed, tuple(sorted(ranks)), others)
        elif not ranks and not missing:
            self.agreed = step


def _differing(digests: Mapping[int, StateDigest], missing: int) -> tuple[list[int], int]:
    """Return `ranks` and `others` of a `Divergence`, by the digests of a step; no ranks if there is none.

    A majority has to be one whatever the `missing` ranks have.
    """
    by_shard: dict[int, dict[int, list[int]]] = {}
    for rank, digest in digests.items():
        by_shard.setdefault(digest.shard, {}).setdefault(digest.digest, []).append(rank)
    minority: list[int] = []
    unclear: list[int] = []
    others = 0
    for by_digest in by_shard.values():
        if len(by_digest) > 1:
            most, *rest = sorted(by_digest.values(), key=len, reverse=True)
            different = [rank for ranks in rest for rank in ranks]
            if len(most) > len(different) + missing:
                minority += different
                others += len(most)
            else:
                unclear += most + different
    return minority or unclear, others


def divergence_record(run: Run, divergence: Divergence) -> ReplicasDiverged:
    """Return the record of a difference; its reason names the ranks, their nodes, the steps, and what is done."""
    step, agreed, ranks = divergence.step, divergence.agreed, divergence.ranks
    nodes = [own.node for own in run.durable.nodes_of(ranks)]
    named = f"{name_ranks(ranks)} on {name_some(nodes, len(nodes))}"
    if divergence.others:
        have = "has" if len(ranks) == 1 else "have"
        others = "rank" if divergence.others == 1 else "ranks"
        what = f"{named} {have} other parameters or optimizer state than {divergence.others} {others} that should "
        what += "have the same"
    else:
        what = f"{named} should have the same parameters and optimizer state, and do not: nobody can say which is wrong"
    if agreed is None:
        when = f"replicas are not alike at step {step:,}, and were at no earlier step that is known"
    else:
        when = f"replicas diverged after step {agreed:,}, by step {step:,}"
    minority = ranks if divergence.others else ()
    # A record may name no more. `judgements` asks whether all are on one node. A node has consecutive ranks, so the
    # first and the last one tell.
    if len(minority) > CONSEQUENCES_MAX:
        minority = (*minority[: CONSEQUENCES_MAX - 1], minority[-1])
    record = ReplicasDiverged(run.job, run.id, f"{when}: {what}", run.durable.round, step, agreed, minority)
    stays = run.keeping.staying_step(record.since)  # the end of a sentence
    if run.spec.on_divergence is OnDivergence.REPORT:
        return replace(record, reason=record.reason + stays)
    return _with_way_back(run, record, stays)


def _with_way_back(run: Run, record: ReplicasDiverged, stays: str) -> ReplicasDiverged:
    """Add the step that the next round goes back to, or the reason why this one goes on; with the step, it is ended.

    `stays` says which step stays on the disk while it goes on.
    """
    back = run.keeping.resume_point(list(run.roll.inside), record.since)
    found_at = run.roll.heard_at  # a report has just shown the difference
    if has_no_restart_left(run, run.durable.ledger.total(found_at)):
        what = f"training goes on, since no restart is left{stays}"
    elif 0 < run.spec.max_futile_rounds <= run.durable.futile:
        what = f"training goes on, since the last rounds made no new step, see --max-futile-rounds{stays}"
    elif back is None:
        what = "training goes on, since no step from before then is kept"
    else:
        what = f"the next round goes back to step {back.step:,}"
        return replace(record, reason=f"{record.reason}; {what}", back_to=back.at)
    return replace(record, reason=f"{record.reason}; {what}")


def divergence_failure(run: Run, found: ReplicasDiverged, now: float) -> WorkerFailure:
    """Return a divergence as a failure of the first rank that is wrong, or of rank 0."""
    rank = found.ranks[0] if found.ranks else 0  # a failure needs a rank; hosts are charged only by `found.ranks`
    own = run.durable.nodes_of([rank])[0]
    failure = Failure(
        rank=rank,
        local_rank=rank - own.first_rank,
        exit_code=ExitCode.DATA_ERROR,
        pid=0,
        message=clip(found.reason, SENTENCE_MAX),
        error="",
        last_lines=(),
        followers=(),
        age_s=0.0,
        diverged=True,
    )
    host = run.members[own.node].offer.host if own.node in run.members else own.node
    return WorkerFailure(own.node, host, now, failure)
