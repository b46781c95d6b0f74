"""The state of its workers that a simulated node keeps, and how it gets the state that a round resumes from.

In place of bytes, a state has its chain: the steps from which the rounds before it resumed. Two states of one step are
equal exactly if their chains are, so a mixture shows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from coordinatord.protocol.kept_state import Holding, KeptSource, KeptStep, Restoring, Resume
from coordinatord.protocol.messages import Observed
from nodeclient.core.effects import CopyKept, HaltWorkers, KeptOrder, Persist, Protect, Restore, SaveKept
from nodeclient.core.events import Keeping, KeptChanged, KeptSaved
from tests.sim.first_states import FirstStates, ScriptCheckpoints
from tests.sim.kept_copies import COPY_S, GARBLED, Chain, Keeps, KeptCopies, Stored, compared
from tests.sim.kept_disk import KeptDisk
from tests.support.kept_state import a_keeper, kept_parts
from workerlib.contract.arena import power_of_two

if TYPE_CHECKING:  # hosts have one
    from tests.sim.host import Host
    from tests.sim.workers import Round, Training
    from tests.sim.world import World

PLACES = 3
FETCH_S = 0.6
"""The longest time to get a state from another node."""

FETCH_WITHIN_S = 8.0
"""How long a node tries that before it gives up."""

SAVE_WITHIN_S = 1.0
NOT_SAVED = 0.1
"""The share of breaks at which workers cannot save their state."""

STUCK = 0.02
"""The share of breaks at which a worker hangs in its save. It ends at SIGTERM."""

ONE_MORE = 0.3
"""The share of stops in which a node's workers have completed one step more than others."""


class KeptMemory:
    """The memory of one life of a nodeclient."""

    def __init__(self, host: Host, world: World, keeps: Keeps) -> None:
        self._host, self._world, self.keeps = host, world, keeps
        self._agent = host.agent
        every_s = world.scenario.persist_every_s
        options = ("copies" if world.scenario.copies else "yes", "" if every_s is None else f"{every_s}s")
        self.keeper = a_keeper(options="+".join(filter(None, options)))
        self.places: list[Stored | None] = [None] * PLACES
        self.fetched: list[Stored] = []
        self.copies = KeptCopies(host, world, self)
        self.disk = KeptDisk(host, world, self)
        self.script, self.first = ScriptCheckpoints(host, world, self), FirstStates(host, world, self)
        self.withdrawn: set[KeptStep] = set()
        """Steps of which a part proved to be damaged."""
        self.key = ("", 0)
        """The present run and round."""
        self.resumed: tuple[KeptStep | None, Chain] | None = None
        """The state that the workers of that round resume from, once the node has it."""
        self.saving = False
        """Whether its workers were asked to save their state, before they are asked to end."""
        self._restoring, self._problem = Restoring.NOTHING, ""
        self.protected: tuple[KeptStep, ...] = ()
        self._attempt, self._saved = 0, -1
        self._ending = False
        self._saves_at_interval = keeps is Keeps.UNIQUE or every_s is not None
        self._interval = world.scenario.save_steps
        self.halts_after: int | None = None
        """The step after which its workers stand still, once they were asked to halt."""
        self.named: int | None = None
        """The step that they are to keep before they end."""

    @property
    def ending(self) -> bool:
        """Whether its workers were asked to save their state, now or after a step, and will then be asked to end."""
        return self.saving or self._ending

    @property
    def stored(self) -> list[Stored]:
        """Everything that is whole."""
        return [kept for kept in (*self.places, *self.fetched, *self.copies.places) if kept is not None and kept.whole]

    def holding(self, observed: Observed) -> Holding | None:
        """Return what the node holds of its run, for a report."""
        here = (observed.run, observed.round) == self.key
        held = {(kept.parts.at, kept.parts.first_rank): kept.parts for kept in self.stored if kept.run == observed.run}
        parts = tuple(structs.replace(parts, protected=parts.at in self.protected) for parts in held.values())
        restoring = self._restoring if here else Restoring.NOTHING
        can_halt = here and self.resumed is not None and bool(self._host.workers.alive)
        on_disk = self.disk.found or self.disk.unusable or self.disk.report is not None
        if not (parts or on_disk or can_halt or self.copies.problem) and restoring is Restoring.NOTHING:
            return None
        holding = Holding(
            parts,
            restoring,
            self._problem if restoring is Restoring.FAILED else "",
            interval_steps=self._interval if can_halt and self._saves_at_interval else None,
            can_halt=can_halt,
            halts_after=self.halts_after if here else None,
            persisted=self.disk.found,
            unusable=self.disk.unusable,
            persisting=self.disk.report if observed.run == self.key[0] else None,
            copy_problem=self.copies.problem,
        )
        return self.first.noted(self.script.noted(holding)) if can_halt else holding

    # Effects of the agent

    def carry_out(self, effect: KeptOrder) -> None:
        """Carry out an effect of the agent."""
        match effect:
            case Protect():
                self.protect(effect)
            case Restore():
                self.restore(effect)
            case CopyKept():
                self._enter(effect.run)
                self.copies.want(effect.copies)
            case Persist():
                self._enter(effect.run)
                self.disk.carry_out(effect.run, effect.order)
            case SaveKept():
                self.save_at_break()
            case HaltWorkers(None):
                self._ending = True
                self.later(0.01, self._halt)
            case HaltWorkers(int(step)):
                self._keep_named(step)
            case _:
                self.first.tell(effect)

    def protect(self, effect: Protect) -> None:
        """Protect these steps from being overwritten."""
        self._enter(effect.run)
        self.protected = effect.steps
        if self.resumed is not None:
            self._drop_fetched()

    def _drop_fetched(self) -> None:
        """Drop what came from other nodes, but for a protected step: its workers have loaded it."""
        self.fetched = [stored for stored in self.fetched if stored.parts.at in self.protected]

    def _enter(self, run: str) -> None:
        """Keep the state of a run, and of no other."""
        if run != self.key[0]:
            self.places, self.fetched, self.protected = [None] * PLACES, [], ()
            self.copies.clear()
            self.key = run, 0

    def restore(self, effect: Restore) -> None:
        """Get the state that the workers of a round resume from."""
        self._enter(effect.run)
        if (effect.run, effect.round) != self.key:
            self.key, self.resumed = (effect.run, effect.round), None
            self._restoring, self._problem, self._saved = Restoring.NOTHING, "", -1
            self.halts_after = self.named = None
        if self.resumed is not None or self._restoring is Restoring.FAILED:
            return
        if effect.resume is None:
            self._settle(None, ())
        elif effect.resume.complete:
            self._attempt, self._restoring = self._attempt + 1, Restoring.FETCHING
            get = self._fetch if effect.resume.disk is None else self._read
            self.later(FETCH_S, get, self._attempt, effect.resume, self._world.queue.now)

    def started(self) -> None:
        """Report that the workers which were just started keep state."""
        self.saving = self._ending = False
        self.later(0.01, lambda: self._host.submit(Keeping(SAVE_WITHIN_S)))

    def save_at_break(self) -> None:
        """Save the last completed step at the break of a round."""
        self.saving = True
        chance, training = self._world.chance, self._host.workers.training
        step = None if training is None else training.stepped()
        has_state = self.keeps is Keeps.SHARED and step is not None and self.resumed is not None
        draw = chance.random() if has_state else 0.0
        if has_state and draw < STUCK:
            return
        if step is None or draw < NOT_SAVED:
            self.later(COPY_S, lambda: self._host.submit(KeptSaved()))
        else:
            assert training is not None
            one_more = training.broken and chance.random() < ONE_MORE
            self._save(training, step[0] + one_more, lambda: self._host.submit(KeptSaved()), last=True)

    def _halt(self) -> None:
        """Let the workers stand still after their present step, which may be one more than that of others."""
        training = self._host.workers.training
        if training is not None and self.named is None and not training.broken:
            self.halts_after = training.stand_still(self._host, one_more=self._world.chance.random() < ONE_MORE)
            self._host.submit(KeptChanged())

    def _keep_named(self, step: int) -> None:
        """Let the workers go on to the named step, and save it."""
        self._ending = True
        training = self._host.workers.training
        if self.named is None and training is not None:
            self._world.invariants.kept.named(self._host, training.key, step, self.halts_after)
            self.named = self.halts_after = step
            training.go_on_to(self._host, step)
            self._await_named(training, step)

    def _await_named(self, training: Training, step: int) -> None:
        stepped = training.stepped()
        if self.saving or training.broken or self._host.workers.training is not training:
            return
        at = KeptStep(training.key[1], step)
        places = (place for place in self.places if place is not None)
        held = [place.whole for place in places if (place.run, place.parts.at) == (training.key[0], at)]
        if stepped is None or stepped[0] < step or held == [False]:
            self.later(0.2, self._await_named, training, step)
        elif held:
            self._named_is_kept(training.key)
        else:
            self._save(training, step, lambda: self._named_is_kept(training.key), last=True)

    def _named_is_kept(self, key: Round) -> None:
        self._world.invariants.kept.keeps_named(self._host, key)
        self._host.submit(KeptSaved())

    # Events

    def begin(self, training: Training) -> None:
        """Save at an interval from now on, if nodes have shards or a disk, and write what the script writes."""
        self._drop_fetched()
        self.script.begin(training)
        self.first.begin(training)
        if self._saves_at_interval:
            self.later(0.5, self._look, training)

    def damage(self) -> bool:
        """Flip a bit of a whole step; return whether there was one."""
        places = [number for number, place in enumerate(self.places) if place is not None and place.whole]
        if places:
            place = self._world.chance.choice(places)
            stored = self.places[place]
            assert stored is not None
            self.places[place] = replace(stored, damaged=True)
        return bool(places)

    def _look(self, training: Training) -> None:
        if self._host.workers.training is not training or training.broken or not self._host.workers.alive:
            return
        stepped = training.stepped()
        step = -1 if stepped is None else stepped[0] - stepped[0] % self._interval
        if stepped is not None and step > self._saved and step >= training.first_step:
            self._save(training, step, lambda: self.later(0.5, self._look, training))
        else:
            self.later(0.5, self._look, training)

    def _save(self, training: Training, step: int, then: object, *, last: bool = False) -> None:
        """Write the state of a step to a free place, and then call `then`; skip it if there is no such place."""
        self._saved = step
        assignment = self._world.invariants.facts.formed[training.key]
        ranks = next(ranks for ranks in assignment.nodes if ranks.node == self._host.node)
        world_size = sum(ranks.workers for ranks in assignment.nodes)
        assert self.resumed is not None
        own = range(ranks.first_rank, ranks.first_rank + ranks.workers)
        shards = self.first.shards(world_size)
        chain, digest = compared(self._world, self.resumed[1]) if shards < world_size else (self.resumed[1], None)
        parts = kept_parts(training.key[1], step, own, world_size=world_size, shards=shards, digest=digest)
        place = self._free_place(last=last)
        if last:
            self._world.invariants.kept.finds_place(self._host, step, place)
        if place is None:
            self.later(COPY_S, then)
            return
        stored = Stored(training.key[0], parts, chain, whole=False)
        self.places[place] = stored
        self.later(COPY_S, self._commit, place, stored, self._host.workers.starts, then)

    def _free_place(self, *, last: bool) -> int | None:
        """Return the place to overwrite: the oldest one that is not protected; None if there is none.

        As in an arena, the newest step makes way for the `last` save of a round, and for one that can be halved more
        often. Of a step that is kept twice, since it was saved again at the end of a round, one place is free.
        """
        steps = [place.parts.at if place is not None and place.whole else None for place in self.places]
        newest = max((at for at in steps if at is not None), default=None)
        free = [n for n, at in enumerate(steps) if at is None or at not in self.protected or at in steps[:n]]
        older = [n for n in free if steps[n] is None or steps[n] != newest or newest in steps[:n]]
        replaces = last or (newest is not None and power_of_two(self._saved) > power_of_two(newest.step))
        return min(older or (free if replaces else ()), key=lambda n: steps[n] or KeptStep(-1, -1), default=None)

    def _commit(self, place: int, stored: Stored, start: int, then: object) -> None:
        if not self._host.workers.alive or self._host.workers.starts != start:
            return  # the worker died during its save; others may live by now
        there = self.places[place]
        if there is not None and (there.run, there.parts.at) == (stored.run, stored.parts.at):
            self.places[place] = replace(there, whole=True)  # another save of the step finds that it is there already
        assert callable(then)
        then()

    def _fetch(self, attempt: int, resume: Resume, began_at: float) -> None:
        if attempt != self._attempt or self.resumed is not None:
            return
        found = [self._get(source, resume) for source in resume.sources]
        if self._restoring is Restoring.FAILED:
            return
        if all(read is not None for read in found):
            chains = {chain for read in found if read is not None for chain in read}
            self._world.invariants.kept.fetched(self._host, resume, chains)
            self._settle(resume.at, chains.pop())
        elif self._world.queue.now - began_at > FETCH_WITHIN_S:
            self._fail("no source has it")
        else:
            self.later(2 * FETCH_S, self._fetch, attempt, resume, began_at)

    def _read(self, attempt: int, resume: Resume, began_at: float) -> None:
        if attempt != self._attempt or self.resumed is not None:
            return
        if self.disk.hangs:
            self.later(2 * FETCH_S, self._read, attempt, resume, began_at)
        elif (chain := self.disk.read(resume)) is None:
            self._fail("digest")
        else:
            self._settle(resume.at, chain)

    def _get(self, source: KeptSource, resume: Resume) -> list[Chain] | None:
        """Return the chains of a source's parts; None if it lacks one or cannot be reached."""
        chains = []
        for wanted in source.parts:
            for rank in range(wanted.first_rank, wanted.first_rank + wanted.ranks):
                stored = self._get_from(source.node, resume.at, rank)
                if stored is None:
                    return None
                chains.append(stored.chain)
        return chains

    def _get_from(self, node: str, at: KeptStep, rank: int) -> Stored | None:
        hosts = (host for host in self._world.hosts.values() if host.node == node and host.memory is not None)
        host = next(hosts, None)
        if host is None or host.memory is None or (host is not self._host and (host.is_cut or host.paused)):
            return None
        stored = host.memory.find(self.key[0], at, rank)
        if stored is None or stored.damaged:
            if stored is not None:
                host.memory.withdraw(stored)
            return None
        if host is not self._host:
            if self._world.chance.random() < GARBLED:
                self._fail("digest")
                return None
            own = structs.replace(stored.parts, first_rank=rank, ranks=1, first_shard=rank % stored.parts.shards)
            self.fetched.append(replace(stored, parts=own))
        return stored

    def find(self, run: str, at: KeptStep, rank: int) -> Stored | None:
        """Return the state of a rank at a step; None if it is not here."""
        for stored in self.stored:
            if (stored.run, stored.parts.at) == (run, at) and 0 <= rank - stored.parts.first_rank < stored.parts.ranks:
                return stored
        return None

    def withdraw(self, stored: Stored) -> None:
        """Drop a damaged state, and report that."""
        self.withdrawn.add(stored.parts.at)
        self.places = [None if place == stored else place for place in self.places]
        self.fetched = [fetched for fetched in self.fetched if fetched != stored]
        self.copies.withdraw(stored)
        self._host.submit(KeptChanged())

    def _settle(self, at: KeptStep | None, chain: Chain) -> None:
        self.resumed = (at, chain if at is None else (*chain, at))
        self._restoring = Restoring.NOTHING if at is None else Restoring.READY
        training = self._world.trainings.get(self.key)
        if training is not None:
            training.begin_if_whole()

    def _fail(self, problem: str) -> None:
        self._restoring, self._problem = Restoring.FAILED, problem
        self._host.submit(KeptChanged())

    def later(self, within_s: float, act: object, *arguments: object) -> None:
        """Call `act` within some time, if the nodeclient still lives then."""

        def do() -> None:
            if self._host.memory is self and self._host.agent is self._agent:
                assert callable(act)
                act(*arguments)

        self._world.queue.after(within_s * self._world.chance.random(), do)
