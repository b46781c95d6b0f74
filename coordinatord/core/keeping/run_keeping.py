"""The door of this wing: `RunKeeping` implements `KeepingWing`, by which a run asks about kept state and is answered.

Most answers come from other modules of this package. This one knows when, and in which order, to ask them.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinatord.core.keeping import handover, holdings, resume_choice, sentences, table, write_plan
from coordinatord.core.keeping.bad_steps import has_spoiled
from coordinatord.core.keeping.copy_orders import copies_for
from coordinatord.core.keeping.disk_steps import drop_useless, found_by
from coordinatord.core.keeping.halting import can_halt
from coordinatord.core.keeping.known import KeptState
from coordinatord.core.keeping.write_plan import END_S
from coordinatord.core.keeping.write_progress import FIRST_SCAN_S
from coordinatord.core.rounds.queries.next_round import next_size
from coordinatord.core.rounds.queries.past_round import is_ending
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.wings import KeepingWing, KeptAtOnce, KeptDesired, Wait, Waits
from coordinatord.core.rounds.values import records
from coordinatord.core.rounds.values.due_times import LONG_AGO, NOW
from coordinatord.protocol.kept_state import PROTECTED_MAX, KeptStep
from coordinatord.protocol.messages import Goal


class RunKeeping(KeptState, KeepingWing):
    """The kept state of one run, behind the interface `KeepingWing`."""

    _lost_at_end = ""
    """What `lost_step` said as the run ended: after that, no step is known any more."""

    # Inputs

    def report(self, member: Member) -> bool:
        """Record a node's report; return whether it shows that ranks are alike or are not: workers wait for that."""
        alike = self.first_states.alike
        holdings.record_report(self, member)
        return self.first_states.alike is not alike

    record_progress = holdings.record_progress

    @property
    def awaits_report(self) -> bool:
        """Whether copies have to be planned anew. `report` does that, even for a report that repeats the last one."""
        return self.copies.are_outdated and self.run.durable.state is State.RUNNING

    def remove(self, member: Member) -> None:
        """Forget the parts of a node, but not which steps it has found on the disk."""
        self.record_parts(member.node, ())
        self.copies.record_problem(member.node, "")
        self.copies.drop_all()
        self.disk.found.record_departure(member.node, found_by(self, member))
        self.hand_over_by.pop(member.node, None)

    def follow(self, record: records.Record) -> None:
        """Bring the kept state up to date with a record."""
        match record:
            case records.NodeJoined():
                self.copies.drop_all()  # other nodes may take the copies now, or have to
            case records.NodeReleased():
                self.index.record_release(record.node)
            case records.RoundFormed():
                self._begin_round(record)
            case records.RoundStopped():
                self._begin_stop(record)
            case records.RunEnded():
                self._lost_at_end = sentences.lost_step(self)
                self.index.clear()
                self.protection.clear()
                self.begin_round(None)  # only to forget what was known of the last round
                self.disk.drop()
        self._drop_spoiled()

    def _drop_spoiled(self) -> None:
        """Stop writing a step that a record has just spoiled, and forget such steps on the disk."""
        attempt, run = self.disk.attempt, self.run
        if attempt is not None and has_spoiled(run.durable, attempt.at, run.id):
            self.disk.drop()
        drop_useless(self)

    def _begin_round(self, record: records.RoundFormed) -> None:
        """Protect the step that the round resumes from, and give departing nodes time until others have fetched it."""
        self.checkpoints.begin_round(record.round)
        resume = record.resume
        self.begin_round(resume.at if resume is not None and resume.disk is None else None)
        if self.disk.since is None:
            self.disk.since = self.run.durable.entered_at
        self.disk.failed_at = None  # from now on workers make newer steps
        handover.renew_time(self, self.run.durable.entered_at)

    def _begin_stop(self, record: records.RoundStopped) -> None:
        """Make room in memory for the last step of the round, and begin to choose it.

        If nodes protect as many steps as they have places, the write of an older one to the disk is given up.
        """
        takes_last_place = self.disk.pinned is not None and len(self.protection.steps or ()) >= PROTECTED_MAX
        if record.planned and takes_last_place:
            self.disk.drop()
        self.protection.is_stopping = True
        self.halting.begin(self.run)

    def after_restart(self, now: float) -> None:
        """Go on after a restart of the coordinator: a write may be overdue, and nodes repeat their promises."""
        self.disk.since = LONG_AGO
        self.disk.retry_at = now + FIRST_SCAN_S
        if self.run.durable.state is State.STOPPING:
            self.halting.begin(self.run)
        self._record_waits()

    # Queries

    resume_point = resume_choice.resume_point
    bad_steps = resume_choice.bad_steps
    resume_text = sentences.resume_text
    staying_step = sentences.staying_step
    restore_problem = property(sentences.restore_problem)
    disk_step = property(sentences.disk_step)

    @property
    def unstepped(self) -> str:
        """Which ranks never report a step, as the end of a sentence; empty without any."""
        ranks = sentences.unstepped(self)
        return f"; {ranks}" if ranks else ""

    @property
    def checkpoint_at(self) -> float | None:
        """When the last checkpoint became known; None if nobody has to wait for one.

        Nobody has to if the script writes no checkpoints, no state is saved only at an interval, and all workers can
        halt: then they save a step whenever they are asked to halt.
        """
        at_intervals = any(member.holding.interval_steps is not None for member in self.run.roll.inside)
        is_awaited = self.checkpoints.writes_any or at_intervals or not all(map(can_halt, self.run.roll.inside))
        return self.checkpoints.newest_at if is_awaited else None

    @property
    def has_disk(self) -> bool:
        """Whether any node has asked to write to a disk."""
        return self.disk.every_s is not None

    @property
    def reached(self) -> int | None:
        """The newest step of the current or last round that is whole in memory or on the disk, or was on the disk."""
        known, number = (self.index.newest_whole, self.disk.found.newest, self.disk.found.lost), self.run.durable.round
        return max((at.step for at in known if at is not None and at.round == number), default=None)

    # Waits

    may_be_needed = handover.may_be_needed
    begin_handover = handover.begin_handover

    def leaves_once(self, member: Member) -> str:
        """Say what a node that hands over waits for: the disk or other nodes."""
        for_disk = write_plan.writes(self, member) or (self.has_disk and self.run.roll.all_leave)
        return "what it keeps is on the disk" if for_disk else "others have what it keeps for them"

    def wait_at_timeout(self, member: Member) -> Wait:
        """Return how long a node stays after its `--join-timeout`: for the disk, if it writes or the run is to end."""
        writes = write_plan.writes(self, member)
        until = write_plan.ends_by(self) if writes or self.run.durable.stop_asked else NOW
        others_write = self.disk.attempt is not None and not writes  # so the step need not be lost
        return Wait(until, last_step="" if others_write else sentences.lost_step(self))

    last_step = property(sentences.last_step)

    def end_unwritten(self, why: str, now: float) -> None:
        """Give up the write, with no time left for another one."""
        self.disk.fail(why, now, None if self.disk.attempt is None else self.disk.attempt.at)
        self.disk.ends_at = now

    def before_end(self) -> str:
        """Say what comes before the end of a run: nodes are heard, or a step is written. Empty if neither has to be."""
        if write_plan.is_unsure(self):
            return "its nodes are heard first, since the coordinator was started again, then "
        return "what is kept is written to the disk, then " if write_plan.is_awaited(self) else ""

    @property
    def lost_step(self) -> str:
        """The step that is lost as the run ends, and why, as the end of a sentence; empty if none is."""
        return self._lost_at_end if self.run.durable.state.ended else sentences.lost_step(self)

    # Its own actions

    def before_table(self, now: float) -> None:
        """Record whether nodes are about to leave, and so wait for the disk; find out what hinders a round or an end.

        Several rows of the table ask what hinders, and so does each message to a node that waits. To look at all nodes
        each time would take too long.
        """
        self.disk.record_end(now, END_S, ends=is_ending(self.run))
        may_form = self.run.durable.state is State.FORMING and next_size(self.run) >= self.run.spec.nodes_min
        self.obstacle = sentences.find_obstacle(self) if may_form else ""
        self._record_waits()

    def _record_waits(self) -> None:
        """Work out the waits before an end. A run that ends waits until all nodes are heard, and for the disk."""
        disk, state = self.disk, self.run.durable.state
        if write_plan.is_unsure(self):
            wait, disk_until = Wait(until=None, why=sentences.UNHEARD), None  # neither time is known yet
        else:
            why = "" if disk.ends_at is None else sentences.last_write(self)
            wait = Wait(write_plan.ends_by(self), why)
            disk_until = disk.ends_at if state is State.STOPPING or self.run.durable.stop_asked else None
        self.waits = Waits(wait, disk_until, handover.waits(self))

    def next_at(self) -> float | None:
        """Return when the first row of the wing's table is due; None if none is."""
        rows = table.ROWS.get(self.run.durable.state, ())
        return min((due for when, _ in rows if (due := when(self)) is not None), default=None)

    def act(self, now: float) -> Iterable[Member]:
        """Execute the first row of the wing's table that is due."""
        for when, action in table.ROWS.get(self.run.durable.state, ()):
            due = when(self)
            if due is not None and due <= now:
                self.changes += 1
                return action(self, now)
        return ()

    def end_round(self, now: float) -> Iterable[Member]:
        """Have the last step of a planned end written to the disk, at once if nodes are about to leave."""
        over_at = table.write_over(self)
        if over_at is not None and over_at <= now:
            # No row of the table has done this while workers ended, and nodes may leave before a row is checked again.
            table.end_write(self, now)
        self.disk.wanted |= self.run.durable.planned
        nodes_leave = self.run.leaving or self.run.durable.stop_asked
        if nodes_leave and table.write_due(self) is not None:  # at once, even in the pause after a failed attempt
            return table.begin_write(self, now)
        return ()

    # Outputs to nodes

    def choose_sources(self) -> None:
        """Plan which node fetches which parts from which, unless that is planned already."""
        if self.run.durable.resume is not None and self.plan is None:
            self.plan = resume_choice.plan_of_round(self)

    def desired_at_once(self, member: Member, goal: Goal) -> KeptAtOnce:
        """Return the orders to halt and to write, and whether ranks are alike: workers or nodes wait for these."""
        return KeptAtOnce(
            halt=self.halting.sent_to(self.run, member) if goal is Goal.STOP else None,
            persist=None if goal is Goal.EXIT else write_plan.order_for(self, member),
            alike=self.first_states.alike if goal is Goal.RUN else None,
        )

    def desired(self, member: Member, goal: Goal) -> KeptDesired:
        """Return the steps to fetch, protect and copy; a change of them waits for each node's next heartbeat."""
        return KeptDesired(
            resume=resume_choice.resume_for(self, member, goal),
            protected=None
            if member.keeper is None or member.state is MemberState.RELEASED
            else self._protected(member),
            copies=copies_for(self, member),
        )

    def _protected(self, member: Member) -> tuple[KeptStep, ...] | None:
        """Return the steps that a node is to protect; None if it is to protect the same as before.

        It is None after a restart of the coordinator, until nodes have reported what they protect. If the round is
        stopped before that, its last step needs a place on each node. So a node without a free place drops the step of
        least use: one that no round may resume from, or else the oldest.
        """
        if self.protection.steps is not None or self.run.durable.state is not State.STOPPING:
            return self.protection.steps
        held = ((at, self.index.holders(at).get(member.node, ())) for at in self.index.steps())
        steps = [at for at, parts in held if any(part.protected for part in parts)]
        best_first = sorted(steps, key=lambda at: not resume_choice.may_be_chosen(self, at))
        return tuple(best_first[:-1]) if len(steps) >= PROTECTED_MAX else None

    def halt_sentence(self) -> str:
        """Say after which step all workers end."""
        return self.halting.sentence(self.run)
