"""Builds the state of jobs as records of the HTTP API, for `GET /v1/jobs`, `nodeclient status` and the live page.

`job_view`, `whole_view` and `summary_view` are of three sizes, since a list of jobs is sent to each viewer again and
again. Ages, and not times, are shown: the reader's clock is another one. Figures are rounded to the digits that a
reader can use. `pace` and `laggard_s` are for the metrics as well.
"""

from __future__ import annotations

from itertools import islice

from msgspec.structs import asdict, replace

from coordinatord.core.judging.judgements import weight
from coordinatord.core.judging.run_judging import RunJudging
from coordinatord.core.keeping.copy_orders import copy_problem
from coordinatord.core.keeping.known import kept_of
from coordinatord.core.keeping.sentences import disk_problem, memory_of, pageable, unkept, unstepped
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.queries.past_round import aged_report, restarts_counted
from coordinatord.core.rounds.queries.reasons import awaits_first_step, shown_state, situation, straggler_without_steps
from coordinatord.core.rounds.queries.time_attribution import spent
from coordinatord.core.rounds.state.cluster import Cluster
from coordinatord.core.rounds.state.durable import DurableCluster, EarlierRun, State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Health, Run
from coordinatord.core.rounds.values.records import REASON_MAX
from coordinatord.core.rounds.values.round_history import Round, RoundHistory
from coordinatord.core.rounds.values.time_ledger import Spent
from coordinatord.core.watching.lateness import WorkerLateness
from coordinatord.core.watching.lateness_watch import describe_laggard
from coordinatord.core.watching.run_watch import lateness_of
from coordinatord.hints.failure_status import failure_status
from coordinatord.protocol.http import api
from coordinatord.protocol.http.page_events import JobSummary
from coordinatord.protocol.messages import CheckResult, Launcher, Observed, Phase, Report, ScaleUp, WorkerStarts
from coordinatord.protocol.text import NAMES_MAX, clip, lasted

SPARE = "spare"
"""The state that is shown of a ready node for which the round at work has no place."""

STARTING = "starting"
"""The state that is shown of a node whose workers run and have done no step yet, although steps are expected: they may
still import modules or load data."""

LOST_SHOWN_S = 3_600.0
"""How many seconds a lost node is shown, so that a person sees it even after a break. Events keep it for longer."""

REFUSED_SHOWN_S = 60.0
"""How many seconds a refused node is shown after it asked last: it asks again every 10 s, or has given up."""

STANDS_S = 5.0
STANDS_STEPS = 2
"""A node that is behind counts as standing still if it has made no step for so many seconds, and for the usual time of
so many steps. With less, its last report may only be late."""


def job_view(run: Run, now: float, store_error: str | None) -> api.JobStatus:
    """Return the live or last run of a job; `store_error` is why nothing can be decided, or None."""
    ready = _state_of_ready(run)
    ledger = _ledger(spent(run, now))
    steps_per_s = pace(run, now)
    furthest = _FurthestWorker(run, steps_per_s)
    late = _late(run)
    # A round whose workers run may still be shown as starting. Then that has lasted since the round was formed.
    since = run.durable.formed_at if awaits_first_step(run) else run.durable.entered_at
    return api.JobStatus(
        job=run.job,
        run=run.id,
        state=shown_state(run),
        health=run.health,
        reason=_situation(run, now, store_error),
        round=run.durable.round,
        opened_s=ledger.total,
        state_s=round(max(0.0, now - since), 3),
        exit_code=None if run.durable.outcome is None else run.durable.outcome.exit_code,
        ledger=ledger,
        world_size=_world_size(run),
        begun=None if run.durable.rounds.current is None else _starts(run.durable.rounds.current.begun),
        progress=_progress(run, steps_per_s),
        kept=kept_view(run),
        restarts=_restarts(run, now),
        spares=_spares(run),
        missing=_missing(run),
        lost=_lost(run, now),
        refused=_refused(run, now),
        earlier=tuple(_earlier(earlier, now) for earlier in run.durable.earlier),
        failure=None if run.durable.report is None else _failure(run.durable.report, run, now),
        laggard=_laggard(run),
        unseen=run.watching.unseen,
        nodes=tuple(
            _node_status(run, member, ready, furthest, late.get(member.node), now) for member in _in_order(run)
        ),
    )


def whole_view(run: Run, rounds: RoundHistory, now: float, store_error: str | None) -> api.JobStatus:
    """Return a job as `job_view` does, with its last rounds and preflight: for a reader of only this job."""
    return replace(job_view(run, now, store_error), rounds=rounds_view(run, rounds, now), preflight=_preflight(run))


def summary_view(run: Run, now: float, store_error: str | None) -> JobSummary:
    """Return a job as an entry of a list, which has the same size for one node as for ten thousand."""
    return JobSummary(
        job=run.job,
        run=run.id,
        state=shown_state(run),
        health=run.health,
        reason=_situation(run, now, store_error),
        round=run.durable.round,
        world_size=_world_size(run),
        restarts=_restarts(run, now),
        spares=_spares(run),
        progress=_progress(run, pace(run, now)),
        nodes=len(run.members),
        goodput=_ledger(spent(run, now)).goodput,
    )


def describe_silent_jobs(cluster: Cluster) -> str:
    """Say of how many jobs no node of the round is heard; empty if there are none."""
    jobs = list(cluster.live)
    silent = sum(run.health is Health.SILENT for run in jobs)
    return f"no node is heard of {silent} of {len(jobs)} live jobs" if silent else ""


def drained_view(cluster: DurableCluster) -> tuple[api.DrainedStatus, ...]:
    """Return the drained nodes and hosts by name, each with as many of its reasons as fit."""
    named = ((name, clip("; ".join(reasons.values()), REASON_MAX)) for name, reasons in sorted(cluster.drained.items()))
    return tuple(api.DrainedStatus(node=name, reason=why) for name, why in named)


def charged_view(cluster: DurableCluster, policy: Policy, now: float) -> tuple[api.HostStatus, ...]:
    """Return the hosts that are charged with failed rounds or quarantined, sorted by name."""
    return tuple(
        api.HostStatus(
            host=host,
            quarantined=known.quarantined,
            weight=round(weight(known.as_of(now), policy.charge_half_life_s, policy.quarantine_at), 3),
            charges=tuple(
                api.ChargeStatus(fault=each.fault, error=each.error, age_s=round(each.age_s, 3))
                for each in known.as_of(now)
            ),
        )
        for host, known in sorted(cluster.hosts.items())
    )


def rounds_view(run: Run, rounds: RoundHistory, now: float) -> tuple[api.RoundStatus, ...]:
    """Return the last rounds of a run, oldest first, each with its ledger since the end of the round before it."""
    so_far = spent(run, now)
    since_end_s = max(0.0, now - run.durable.entered_at) if run.durable.state.ended else 0.0
    return tuple(_round_status(round_, so_far, so_far.total + since_end_s) for round_ in rounds)


def _preflight(run: Run) -> api.PreflightStatus | None:
    # `JudgingWing` itself, of a run without wings, tests no hosts.
    preflight = run.judging.preflight if isinstance(run.judging, RunJudging) else None
    if preflight is None or not preflight.members:
        return None
    search = preflight.search
    return api.PreflightStatus(
        reason=preflight.why,
        is_over=preflight.is_over,
        stopped=preflight.stopped,
        nodes=tuple(
            api.PreflightNodeStatus(node=node, host=search.hosts[node], **asdict(finding))
            for node, finding in search.findings.items()
        ),
        bad_links=search.bad_links,
    )


def _round_status(round_: Round, so_far: Spent, run_age_s: float) -> api.RoundStatus:
    """Return a round; its times count from the run's opening, and are shown as ages, by the run's own age."""

    def ago(at: float | None) -> float | None:
        return None if at is None else round(max(0.0, run_age_s - at), 3)

    return api.RoundStatus(
        round=round_.number,
        nodes=round_.nodes,
        workers=round_.workers,
        formed=round_.formed,
        stopped=round_.stopped,
        ended=round_.ended,
        planned=round_.planned,
        charged=round_.charged,
        formed_s=ago(round_.formed_at),
        running_s=ago(round_.running_at),
        stopped_s=ago(round_.stopped_at),
        ended_s=ago(round_.ended_at),
        seconds=_seconds((round_.after or so_far).minus(round_.before)),
        begun=_starts(round_.begun),
    )


def _starts(starts: WorkerStarts | None) -> api.WorkerStartsStatus | None:
    if starts is None:
        return None
    why_cold = "" if starts.why_cold is None else starts.why_cold.text
    return api.WorkerStartsStatus(**asdict(starts) | {"why_cold": why_cold})


def _progress(run: Run, steps_per_s: float | None) -> api.ProgressStatus:
    progress, is_on = run.progress, run.durable.state.at_work
    idle_s = round(progress.idle_s, 3) if is_on and progress.stepped_at is not None else None
    usual_s = round(progress.pace.usual_s, 6) if is_on and progress.pace.usual_s is not None else None
    return api.ProgressStatus(
        step=run.step, steps_per_s=steps_per_s, reached=run.durable.reached, idle_s=idle_s, usual_s=usual_s
    )


def _situation(run: Run, now: float, store_error: str | None) -> str:
    if store_error is not None:
        return f"nothing can be decided, {store_error}; {run.durable.reason}"
    return situation(run, now)


def _lost(run: Run, now: float) -> tuple[api.LostStatus, ...]:
    """Return the nodes that were lost in the last `LOST_SHOWN_S` and are not back, each once, the last one first."""
    last = {loss.node: loss for loss in run.durable.lost if now - loss.at <= LOST_SHOWN_S}
    away = [loss for loss in last.values() if loss.node not in run.members]
    return tuple(
        api.LostStatus(
            node=loss.node,
            host=loss.host,
            reason=loss.reason,
            round=loss.round,
            lost_s=round(max(0.0, now - loss.at), 3),
        )
        for loss in sorted(away, key=lambda loss: -loss.at)
    )


def _refused(run: Run, now: float) -> tuple[api.RefusedStatus, ...]:
    return tuple(
        api.RefusedStatus(node=node, host=asked.host, reason=asked.why, refused_s=round(max(0.0, now - asked.at), 3))
        for node, asked in run.gathering.refused.items()
        if now - asked.at <= REFUSED_SHOWN_S
    )


def _earlier(earlier: EarlierRun, now: float) -> api.EarlierRunStatus:
    ledger = _ledger(earlier.spent)
    return api.EarlierRunStatus(
        run=earlier.run,
        state=earlier.state,
        reason=earlier.reason,
        step=earlier.step,
        opened_s=ledger.total,
        ended_s=round(max(0.0, now - earlier.ended_at), 3),
        goodput=ledger.goodput,
        exit_code=earlier.exit_code,
    )


def _ledger(time: Spent) -> api.LedgerStatus:
    seconds = _seconds(time)
    total = round(sum(asdict(seconds).values()), 3)  # the parts that are shown add up to the total to the last digit
    trained = seconds.training
    # Goodput is known only if steps were reported. Training and redone time prove that. Stalled time proves it only
    # without running time, which is that of workers that report no steps: they count as stalled if they hang.
    are_steps_known = trained or seconds.redone or (seconds.stalled and not seconds.running)
    goodput = round(trained / total, 6) if are_steps_known else None
    return api.LedgerStatus(seconds=seconds, total=total, goodput=goodput)


def _seconds(time: Spent) -> api.SecondsStatus:
    return api.SecondsStatus(**{activity: round(seconds, 3) for activity, seconds in time.by_activity().items()})


def _world_size(run: Run) -> int:
    in_round = run.durable.state in {State.STARTING, State.RUNNING, State.STOPPING}
    return sum(member.offer.workers for member in run.roll.inside) if in_round else 0


def _restarts(run: Run, now: float) -> api.RestartsStatus:
    """Return the budget of restarts, without a maximum if torchrun's agents count them."""
    return api.RestartsStatus(
        used=restarts_counted(run, run.durable.ledger.total(now)),
        max=None if run.spec.launcher is Launcher.TORCHRUN else run.spec.max_restarts,
        window_s=run.spec.restart_window_s,
    )


def _spares(run: Run) -> int:
    return run.roll.count(MemberState.READY) if _state_of_ready(run) == SPARE else 0


def _missing(run: Run) -> api.MissingStatus:
    missing = {} if run.durable.state.ended else run.roll.missing
    return api.MissingStatus(count=len(missing), nodes=tuple(islice(missing, NAMES_MAX)))


def _failure(report: Report, run: Run, now: float) -> api.FailureStatus:
    return replace(failure_status(report), age_s=round(aged_report(report, run, now).failure.age_s, 3))


def _in_order(run: Run) -> list[Member]:
    """Return the members by group rank; then those outside the round, by their last group rank and their arrival."""
    place = {node: index for index, node in enumerate(run.durable.order)}

    def key(member: Member) -> tuple[bool, int, float]:
        assignment = member.durable.assignment
        rank = place.get(member.node, len(place)) if assignment is None else assignment.group_rank
        return assignment is None, rank, member.readiness.arrived_at

    return sorted(run.members.values(), key=key)


class _FurthestWorker:
    """The worker with the highest step, by which it is judged whether the workers of a node are behind.

    All ranks take the same steps together. So most differences only mean that a node's report is older than others, and
    lacks the steps of some seconds. That node must not be shown as behind.
    """

    def __init__(self, run: Run, steps_per_s: float | None) -> None:
        members = run.members.values() if run.durable.state.at_work else ()
        self._step = max((step for _, _, step in run.worker_steps(members)), default=None)
        self._per_s = steps_per_s
        self._all_stand = run.health is Health.STALLED
        usual_s = run.progress.pace.usual_s
        self._stands_s = None if usual_s is None else max(STANDS_S, STANDS_STEPS * usual_s)

    def lag_of(self, observed: Observed, seen_s: float) -> int:
        """Return how many steps the last worker of a node is behind; 0 if its report may only be late."""
        if self._step is None or observed.step_age_s is None:
            return 0
        lag = self._step - min((step for step in observed.steps if step is not None), default=self._step)
        if self._all_stand or (self._stands_s is not None and observed.step_age_s > self._stands_s):
            return lag
        if self._per_s is None:
            return 0
        # The steps that the furthest worker may have done since this report, with two seconds and two steps to spare.
        unreported = 2 + (2 + seen_s) * self._per_s
        return lag if lag > unreported else 0


def _node_status(
    run: Run, member: Member, ready: str, furthest: _FurthestWorker, late: api.LateStatus | None, now: float
) -> api.NodeStatus:
    observed, offer = member.observed, member.offer
    assignment = member.durable.assignment
    seen_s = max(0.0, now - member.lease.heard_at)
    here = run.is_about_round(observed)
    steps = observed.steps if here else ()
    age_s = seen_s + observed.step_age_s if steps and observed.step_age_s is not None else None
    join = member.session.join
    state: str = ready if member.state is MemberState.READY else member.state
    if member.state is MemberState.RUNNING and awaits_first_step(run):
        state = STARTING
    return api.NodeStatus(
        node=member.node,
        host=offer.host,
        address=offer.advertise_address or member.session.peer_address,
        state=state,
        reason="its workers run, and have done no step yet" if state == STARTING else _reason(member, now),
        drained=bool(member.drained),
        group_rank=None if assignment is None else assignment.group_rank,
        ranks=() if assignment is None else tuple(range(assignment.first_rank, assignment.first_rank + offer.workers)),
        last_seen_s=round(seen_s, 3),
        release=None if join is None else join.release or None,
        protocol=None if join is None else join.version,
        log_dir=offer.log_dir or None,
        pids=observed.pids if here else (),
        steps=steps,
        step_age_s=None if age_s is None else round(age_s, 3),
        behind=furthest.lag_of(observed, seen_s) if steps else 0,
        kept=_node_kept_view(run, member),
        late=late,
        begun=_starts(observed.begun) if here else None,
    )


def pace(run: Run, now: float) -> float | None:
    """Return how many steps a second the round does; None if it does none, or one of its workers does none.

    The other workers may still report steps for a while then, so the pace of the last seconds would mislead.
    """
    steps_per_s = run.progress.pace.steps_per_s
    if run.durable.state is not State.RUNNING or run.health is not Health.WELL or steps_per_s is None:
        return None
    return None if straggler_without_steps(run, now) else round(steps_per_s, 6)


def laggard_s(run: Run) -> float | None:
    """Return how many seconds late the worker is that delays all others; 0 if none does, None if that is not known."""
    lateness = lateness_of(run)
    if lateness is None:
        return None
    return 0.0 if lateness.laggard is None else lateness.laggard.late_s


def _laggard(run: Run) -> api.LaggardStatus | None:
    lateness = lateness_of(run)
    if lateness is None or (laggard := lateness.laggard) is None:
        return None
    return api.LaggardStatus(
        rank=laggard.rank,
        node=laggard.node,
        last=round(laggard.last_share, 3),
        late_s=round(laggard.late_s, 6),
        step_s=None if lateness.step_s is None else round(lateness.step_s, 6),
        sentence=describe_laggard(laggard, lateness.step_s),
    )


def _late(run: Run) -> dict[str, api.LateStatus]:
    """Return the worker of each node that is last most often, by node; nothing while the job does not train."""
    lateness = lateness_of(run)
    latest: dict[str, WorkerLateness] = {}
    for worker in () if lateness is None else lateness.ranks:
        if worker.node not in latest or worker.last_share > latest[worker.node].last_share:
            latest[worker.node] = worker
    return {
        node: api.LateStatus(
            rank=worker.rank, last=round(worker.last_share, 3), late_s=round(max(0.0, worker.late_s), 6)
        )
        for node, worker in latest.items()
    }


def _state_of_ready(run: Run) -> str:
    """Return how the state of a ready node is shown: as a spare, or as one that has arrived and waits for a round."""
    if not run.durable.state.at_work:
        return str(MemberState.READY)
    is_spare = run.roll.round_size >= run.spec.nodes_max or run.spec.scale_up is ScaleUp.NEVER
    return SPARE if is_spare else "arrived"


def _reason(member: Member, now: float) -> str:
    """Say why a node is in its state: by its end, else why it leaves, and so on down to what its workers do."""
    if member.durable.outcome is not None:
        return member.durable.outcome.summary
    if member.drained:
        return f"leaving: {member.drained}"
    if member.observed.leaving or member.state is MemberState.QUARANTINED:
        return "leaving" if member.observed.leaving else member.readiness.quarantined
    if member.session.id is None:
        return "its access token is no longer valid" if member.session.revoked else "disconnected"
    if member.state is MemberState.ASSIGNED:
        return "its workers are to start"
    since = member.readiness.preparing_since if member.state is MemberState.PREPARING else None
    so_far = "" if since is None else f", for {lasted(now - since)} so far"
    held_up = f": {member.observed.held_up}" if member.observed.held_up else ""
    check = member.observed.check
    judged = f"; its health check {check.says}" if check is not None and check.result is not CheckResult.GOOD else ""
    if member.readiness.quarantined:
        judged = f"; its host is {member.readiness.quarantined}"
    return _BY_PHASE[member.observed.phase] + so_far + held_up + judged


_BY_PHASE = {
    Phase.PREPARING: "imports the modules of --preload",
    Phase.IDLE: "has no workers",
    Phase.STARTING: "its workers are starting",
    Phase.RUNNING: "its workers are running",
    Phase.STOPPING: "its workers are ending",
    Phase.STOPPED: "its workers have ended",
    Phase.SUCCEEDED: "its workers have succeeded",
    Phase.FAILED: "a worker failed",
}


def kept_view(run: Run) -> api.KeptStatus | None:
    """Return the kept state of a run; None if there is none, and no node has a problem with keeping it."""
    resume = run.durable.resume
    kept = kept_of(run)
    index, disk, slow = kept.index, kept.disk, pageable(kept)
    if resume is None and not index and disk.every_s is None and not slow and not unstepped(kept):
        return None
    newest, copied = index.newest_whole, kept.copied
    holdings = [member.holding for member in run.members.values()]
    return api.KeptStatus(
        step=None if newest is None else newest.step,
        resumed=None if resume is None else resume.step,
        resumed_from="" if resume is None else memory_of(resume),
        redone=None if resume is None else resume.redone,
        redone_at_least=resume is not None and resume.redone_at_least,
        interval_steps=max((each.interval_steps for each in holdings if each.interval_steps is not None), default=None),
        save_s=max((each.save_s for each in holdings if each.save_s is not None), default=None),
        used_bytes=sum(each.used_bytes for each in holdings),
        skipped=sum(each.skipped for each in holdings),
        copied=None if copied is None else copied.step,
        copy_problem=copy_problem(kept),
        unkept=unkept(kept),
        pageable=slow[0] if slow else "",
        unstepped=unstepped(kept),
        disk_step=None if kept.disk.found.newest is None else kept.disk.found.newest.step,
        disk_writing=None if disk.attempt is None else disk.attempt.at.step,
        disk_problem=disk_problem(kept),
    )


def _node_kept_view(run: Run, member: Member) -> api.NodeKeptStatus | None:
    kept = member.observed.kept
    if kept is None:
        return None
    copied_to, copied_at = kept_of(run).copy_of(member.node) or ("", None)
    return api.NodeKeptStatus(
        used_bytes=kept.used_bytes,
        limit_bytes=None if member.keeper is None else member.keeper.limit_bytes,
        interval_steps=kept.interval_steps,
        save_s=kept.save_s,
        skipped=kept.skipped,
        restoring=kept.restoring,
        problem=kept.problem,
        pageable=kept.pageable,
        copied_to=copied_to,
        copied_step=None if copied_at is None else copied_at.step,
    )
