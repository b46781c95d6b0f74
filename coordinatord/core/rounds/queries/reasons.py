"""Describes a run in words: for the reasons of the table, for waiting nodes, for the status, and for operators.

A row of the table has a template such as "lost {reasons.lost}", which is filled in when the row is taken. So a text is
only made when it is needed.
"""

from __future__ import annotations

from functools import cached_property
from itertools import islice

from msgspec.structs import replace

from coordinatord.core.rounds.queries.conditions import exit_awaited, first_step_overdue, outage
from coordinatord.core.rounds.queries.next_round import candidates, pause_s
from coordinatord.core.rounds.queries.past_round import (
    NoRestart,
    futile,
    no_restart,
    over_at,
    restarts_counted,
    verdict,
)
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.evidence import living_ranks
from coordinatord.core.rounds.state.member import MAY_HAVE_WORKERS, UNHEARD, Member, MemberState
from coordinatord.core.rounds.state.run import Health, Run, StragglingWorker
from coordinatord.core.rounds.values.time_ledger import Activity
from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.messages import HangKind, Launcher, WorkerStarts
from coordinatord.protocol.spec_flags import restarts
from coordinatord.protocol.text import NAMES_MAX, ago, clip, counted, lasted, name_some

KILLED_MAX = 2
"""The most nodes that are named for killed workers, so that a reason stays below the limit of a record."""

_WAS = {
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.STOPPED: "was stopped",
    State.LEFT: "was left by its last node",
}
"""The end of a run, as the verb of a sentence about its job."""


class Reasons:
    """Texts about one run as it is now. Most of them fill the placeholders of the table's reasons."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def verdict(self) -> str:
        """What ended the round, by the evidence so far, and which workers were killed before they had saved.

        For a hang, it says how many earlier rounds hung at the same place.
        """
        judged = verdict(self._run)
        has_hung = judged.root_cause is not None and judged.root_cause.failure.hang is not None
        return judged.reason + (self._run.watching.hung_before if has_hung else "") + self._killed

    @property
    def _killed(self) -> str:
        """Name workers that were killed before they had saved their state, and who hung, as the end of a sentence."""
        run, parts = self._run, []
        for member in run.roll.inside:
            killed = member.observed.killed
            if killed is not None and run.is_about_round(member.observed):
                parts.append((member.node, killed))
        if not parts:
            return ""
        named = [
            f"{name_some(map(str, killed.ranks), killed.count, 'rank')} on node {node} (within {killed.after_s:g} s)"
            for node, killed in parts[:KILLED_MAX]
        ]
        more = f" and on {counted(len(parts) - KILLED_MAX, 'more node')}" if len(parts) > KILLED_MAX else ""
        lost = f"; killed, as they had not ended in time, so what they had not saved is lost: {', '.join(named)}{more}"
        return "; ".join(filter(None, (lost, self.suspect)))

    @property
    def suspect(self) -> str:
        """Name the worker that hangs, and its host, though the round is not ended for it; empty if none is known.

        If a signal has stopped all workers, none of them hangs, and it says that.
        """
        suspect = self._run.watching.suspect
        if suspect is None:
            return self._run.watching.stopped
        # The message names the node. Its host is added if it has another name, and if the network is not the culprit.
        needs_host = suspect.host != suspect.node and suspect.failure.hang is not HangKind.NETWORK
        return f"the round hung{f' on host {suspect.host}' if needs_host else ''}: {suspect.failure.message}"

    @property
    def starts(self) -> str:
        """How the workers of the round were started, why not faster, and why it was formed: the end of a sentence."""
        starts, formed = count_starts(self._run), f" ({self._run.durable.formed_reason})"
        if starts is None:
            return formed
        ways = ((starts.in_place, "in place"), (starts.warm, "warm"), (starts.cold, "cold"))
        why_not = f"; not in place on {starts.why_not}" if starts.why_not else ""
        why_cold = f"; cold on {starts.why_cold.text}" if starts.why_cold else ""
        return f": {', '.join(f'{count} {way}' for count, way in ways if count)}{why_not}{why_cold}{formed}"

    @property
    def budget(self) -> str:
        """Why no other round follows: how many restarts were used, of how many, or that none would help."""
        run = self._run
        if run.spec.launcher is Launcher.TORCHRUN and no_restart(run) is None:
            return f"restarts: {run.durable.restarts_used}, and by torchrun's own count none is left"
        used = f"{restarts_counted(run, over_at(run))} of {restarts(run.spec)}"
        return (no_restart(run) or NoRestart.SPENT).format(used=used, futile=futile(run))

    def _names(self, *states: MemberState) -> str:
        """Name the members of some states: 'node a', 'nodes a, b'."""
        named = (member.node for member in self._run.roll.in_state(*states))
        return name_some(named, self._run.roll.count(*states))

    @property
    def lost(self) -> str:
        """The nodes of the round that fell silent or are no longer members."""
        durable = self._run.durable
        heard = {member.node for member in self._run.roll.inside if member.state is not MemberState.SILENT}
        lost = [node for node in durable.order if node not in heard and node not in durable.succeeded]
        return name_some(lost, len(lost))

    @property
    def corroborated(self) -> str:
        """Why a node counts as lost before its time to reconnect is over."""
        others = [node for node in self._run.durable.order if node in self._run.evidence.failures]
        failed = name_some(others, len(others))
        return f"its workers are gone: its connection closed, and workers of {failed} lost a connection to a peer"

    @property
    def stopped(self) -> str:
        """The nodes of the round that have ended their workers, or are about to."""
        return self._names(MemberState.STOPPING, MemberState.STOPPED)

    @property
    def slow(self) -> str:
        """The nodes of the round that may still have workers."""
        return self._names(*MAY_HAVE_WORKERS)

    @property
    def ready(self) -> str:
        """The nodes that are ready for a round."""
        return self._names(MemberState.READY)

    @property
    def chosen(self) -> str:
        """The nodes to form a round of now, and whether it may have more."""
        is_full = len(self._candidates) == self._run.spec.nodes_max
        named = name_some((member.node for member in self._candidates), len(self._candidates))
        return f"{named}, all that --nnodes allows" if is_full else named

    @cached_property
    def _candidates(self) -> list[Member]:
        """The nodes of `chosen` as members, cached: to sort 10,000 takes 0.1 s."""
        return candidates(self._run)

    @property
    def resumes(self) -> str:
        """What the round to form now resumes from, as the end of a sentence; empty if nothing has been kept yet."""
        return self._run.keeping.resume_text(self._candidates)

    @property
    def leave_asked(self) -> str:
        """Which nodes of the round were asked to leave, and why some of them are drained."""
        nodes = sorted(self._run.leaving)
        drained = dict.fromkeys(self._run.members[node].drained for node in nodes)
        whys = "; ".join(islice(filter(None, drained), NAMES_MAX))
        asked = f"{name_some(nodes, len(nodes))} {'was' if len(nodes) == 1 else 'were'} asked to leave"
        return f"{asked}: {whys}" if whys else asked

    @property
    def stop_asked(self) -> str:
        """Why an operator ends the run, and which workers were killed in the stop of its last round, if that was it."""
        asked, ended = self._run.durable.stop_asked, self._run.durable.last_end_reason
        return ended if ended.startswith(asked) else asked

    @property
    def last_step(self) -> str:
        """Where the newest step of an ending run is, or why it is lost, and which ranks differ: the end of a text."""
        run, found = self._run, self._run.durable.divergence
        goes_back = found is not None and found.back_to is not None  # then no step is kept in which they differ
        difference = "" if goes_back else run.difference
        return run.keeping.last_step + (difference and f"; {difference}")

    def came_late(self, now: float) -> str:
        """Explain to a node that comes after the end of the run how it ended."""
        return f"{self._ended(now)} before this node came (run {self._run.id}): {self._run.durable.reason}"

    def followed_by_run(self, next_run: str, now: float) -> str:
        """Explain that another run of the job follows this one."""
        return f"{self._ended(now)} ago (run {self._run.id}); this begins run {next_run}"

    def _ended(self, now: float) -> str:
        run = self._run
        return f"job {run.job} {_WAS[run.durable.state]} {ago(now - run.durable.entered_at)}"

    @property
    def because(self) -> str:
        """Why the last round ended, and which operator asked for the next one, as the beginning of a sentence."""
        cause, asked = self._run.durable.last_end_reason.rstrip("."), self._run.restart_asked
        return "".join(f"{why}; " for why in (cause, asked if asked not in cause else "") if why)

    @property
    def waiting_for(self) -> str:
        """What a run without a round waits for, or one whose round is being stopped."""
        run, least = self._run, self._run.spec.nodes_min
        if run.durable.state is State.STOPPING:
            return self._ending
        ready, preparing = run.roll.count(MemberState.READY), run.roll.count(MemberState.PREPARING)
        joined = ready + preparing + run.roll.count(MemberState.QUARANTINED)
        if run.durable.stop_asked:
            return "; ".join(filter(None, (run.durable.stop_asked, run.keeping.waits.run.why)))
        still = f"; preparing: {self._names(MemberState.PREPARING)}" if preparing else ""
        if ready >= least:
            tests = run.judging.obstacle()
            if pause_s(run) and not tests:
                return pause_text(pause_s(run), run.durable.round + 1, run.durable.repeats)
            settling = f"{joined} joined, at least {least} needed: waiting a moment for more{still}"
            return run.keeping.obstacle or tests or settling
        if joined >= least:
            return f"{joined} joined, at least {least} needed{still}"
        text = f"waiting for nodes: {joined} of {least} joined"
        there = (MemberState.READY, MemberState.PREPARING, MemberState.QUARANTINED)
        present = f" ({self._names(*there)})" if joined else ""
        missing = f"; missing: {name_some(run.roll.missing, len(run.roll.missing))}" if run.roll.missing else ""
        leaving = MemberState.HANDING_OVER
        leave = f"; leaving: {self._names(leaving)}" if run.roll.count(leaving) else ""
        return text + present + still + missing + leave

    @property
    def _ending(self) -> str:
        run = self._run
        parts = [run.durable.reason]
        if halt := run.keeping.halt_sentence():
            parts.append(halt)
        if run.roll.with_workers:
            parts.append(f"waiting for the workers of {self.slow} to end")
        elif why := run.keeping.waits.run.why:
            parts.append(why)
        if run.durable.stop_asked and run.durable.stop_asked != run.durable.reason:
            parts.append(f"then it ends: {run.durable.stop_asked}")
        return "; ".join(parts)

    @property
    def silence(self) -> str:
        """What may have silenced all nodes of the round."""
        if all(member.session.revoked for member in self._run.roll.inside):
            why = "their access tokens are no longer valid, so give them others"
        elif self._run.roll.others_heard:
            why = "they may have ended, or their own network is cut, since nodes of other jobs are heard"
        else:
            why = "the coordinator's own network may be cut"
        return f"every node is silent: {why}"

    @property
    def overdue(self) -> str:
        """How long the first step of the round was awaited."""
        entered_at = self._run.durable.entered_at
        return self.without_step((first_step_overdue(self._run) or entered_at) - entered_at)

    def without_step(self, seconds: float) -> str:
        """Say that no step has come for so many seconds, and what to do if the script reports none."""
        text = f"no step yet, and all workers were started {ago(seconds)} ago"
        advice = "if the script never calls ctx.step, let it call workerlib.init(steps=False)"
        return text if self._run.durable.reports_steps else f"{text}: {advice}"

    @property
    def exit_overdue(self) -> str:
        """Which workers have not ended, as of the moment at which that takes too long."""
        last_at = self._run.exits.last_at
        return self.without_exit((exit_awaited(self._run) or last_at) - last_at)

    def without_exit(self, seconds: float) -> str:
        """Say which workers of the round have not ended, though others ended without an error so many seconds ago."""
        run, nodes, living = self._run, list[str](), list[int]()
        for own in run.durable.order.values():
            member = run.members.get(own.node)
            if (
                member is not None
                and run.is_about_round(member.observed)
                and (alive := living_ranks(own, member.observed))
            ):
                nodes.append(own.node)
                living += alive
        have, ended = "has" if len(living) == 1 else "have", run.exits.ended
        others = "the other one" if ended == 1 else f"the {ended:,} others"
        where = f"{name_some(map(str, living), len(living), 'rank')} on {name_some(nodes, len(nodes))}"
        text = f"{where} {have} not ended, though {others} ended without an error {ago(seconds)} ago"
        return text if run.spec.launcher is Launcher.TORCHRUN else f"{text}: see nodeclient stacks"

    @property
    def idle(self) -> str:
        """How long no worker has done a step, how long one usually takes, and which worker is behind."""
        progress, straggler = self._run.progress, self._run.straggler
        text = "no step" if progress.stepped_at is None else f"no step for {lasted(progress.idle_s)}"
        if progress.pace.usual_s is not None:
            text += f" (usually {lasted(progress.pace.usual_s)})"
        if straggler is not None:
            text += f"; rank {straggler.rank} on node {straggler.node} is behind, by {straggler.lag}"
        if self._run.spec.hang_timeout_s == 0:
            text += "; hangs are not looked for (--hang-timeout off): see nodeclient stacks"
        return self.with_notices(text)

    def with_notices(self, text: str) -> str:
        """Add to a text which steps are done again, which ranks have diverged, and what the last looks have found."""
        run = self._run
        if run.durable.state is not State.RUNNING:
            return text
        if lost := run.durable.lost_steps():
            text = text.replace(f"; {run.durable.why_anew}", "")  # `lost` ends with that
        return "; ".join(filter(None, (text, lost, run.difference, run.watching.notice)))


def pause_text(seconds: float, round_number: int, repeats: int) -> str:
    """Explain why the next round waits for so many seconds."""
    times = "twice" if repeats == 1 else f"{repeats + 1} times"
    return f"waiting {seconds:g} s before round {round_number}: the same error {times} in a row"


def count_starts(run: Run) -> WorkerStarts | None:
    """Return how the workers of the present round were started, and the first nodes' reasons for slower starts.

    From the fastest way to the slowest, a worker is a process of the round before (in place), forked from an
    interpreter that has imported the modules of `--preload` (warm), or a process of its own (cold). None if no node
    reports it: then all workers are cold, and no faster start was possible. So are those of a node that reports none.
    """
    known = [
        (member.node, member.observed.begun)
        for member in run.roll.inside
        if member.observed.begun is not None and member.observed.round == run.durable.round
    ]
    if not known:
        return None
    workers = sum(member.offer.workers for member in run.roll.inside)
    # A node may report more starts than it has workers.
    in_place = min(sum(starts.in_place for _, starts in known), workers)
    warm = min(sum(starts.warm for _, starts in known), workers - in_place)
    why_not_in_place = next((f"node {node}: {starts.why_not}" for node, starts in known if starts.why_not), "")
    why_cold = next(
        (
            replace(starts.why_cold, text=clip(f"node {node}: {starts.why_cold.text}", SENTENCE_MAX))
            for node, starts in known
            if starts.why_cold is not None
        ),
        None,
    )
    return WorkerStarts(in_place, warm, workers - in_place - warm, clip(why_not_in_place, SENTENCE_MAX), why_cold)


# The status


def situation(run: Run, now: float) -> str:
    """Return why the run is in its present state, as of now."""
    reasons = Reasons(run)
    if run.durable.state in {State.FORMING, State.STOPPING}:
        until = run.keeping.waits.disk_until
        limit = "" if until is None else f" (for at most {lasted(max(0.0, until - now))})"
        return reasons.waiting_for + limit
    if run.health is Health.SILENT:
        return _silence(run, now)
    exit_overdue_at = exit_awaited(run)
    if run.durable.state is State.RUNNING and exit_overdue_at is not None and exit_overdue_at <= now:
        return reasons.with_notices(reasons.without_exit(now - run.exits.last_at))
    section = _section(run)
    if run.health is Health.STALLED:
        return section + reasons.idle
    if run.durable.step_overdue and not run.durable.stepped:
        return reasons.with_notices(reasons.without_step(now - run.durable.entered_at))
    no_step = "no step yet; " if awaits_first_step(run) else ""
    behind = "" if section else _straggling(run, now)  # in a section, workers need do no steps
    return reasons.with_notices(no_step + section + run.durable.reason + behind)


def shown_state(run: Run) -> State:
    """Return the state as it is shown: a round counts as starting until its workers have done a step.

    A job that an operator ends is stopping until it has ended, also while it only waits for the disk.
    """
    if run.durable.state is State.FORMING and run.durable.stop_asked:
        return State.STOPPING
    return State.STARTING if awaits_first_step(run) else run.durable.state


def awaits_first_step(run: Run) -> bool:
    """Whether all workers of the round run, and are to report steps, of which none is known yet."""
    return run.durable.state is State.RUNNING and run.activity is Activity.STARTING


def straggler_without_steps(run: Run, now: float) -> StragglingWorker | None:
    """Return the straggler if it has done no step for longer than the patience, while others did several; else None."""
    worker = run.straggler
    stands = worker is not None and worker.lag > 1 and now - worker.stepped_at >= run.progress.patience_s
    return worker if stands else None


def _straggling(run: Run, now: float) -> str:
    """Say that one worker does no steps while others do, as the end of a sentence; empty if that is not so."""
    worker = straggler_without_steps(run, now) if run.durable.state is State.RUNNING else None
    if worker is None:
        return ""
    stands = f"rank {worker.rank} on node {worker.node} has done no step for {lasted(now - worker.stepped_at)}"
    why = "others may skip collectives that it waits for, see nodeclient stacks"
    return f"; {stands}, and is {worker.lag:,} behind: {why}"


def _section(run: Run) -> str:
    """Return the section of the script that workers are in, as the beginning of a sentence; empty without one."""
    named = run.progress.sections.longest
    if named is None or run.durable.state is not State.RUNNING:
        return ""
    return f"in section {named.section.name}, at most {lasted(named.section.limit_s)}; "


def _silence(run: Run, now: float) -> str:
    """Say what may have silenced all nodes of the round, when workers stop, and when the job is given up."""
    ends_at = outage(run)
    end = "" if ends_at is None else f"; the job is given up in {lasted(max(0.0, ends_at - now))}"
    if all(member.observed == UNHEARD for member in run.roll.inside):
        since = f"not heard since this coordinator was started {ago(now - run.roll.heard_at)} ago"
        return f"{since}: they may have ended meanwhile{end}"
    last_heard_at = max(member.lived_at for member in run.roll.inside)
    stop_in_s = last_heard_at + run.policy.outage_grace_s - now
    workers = f"workers stop in {lasted(stop_in_s)}" if stop_in_s > 0 else "their workers have stopped"
    return f"{Reasons(run).silence}; {workers}{end}"
