"""Gives the workers of a round their memory, and lends that of one that has ended to one that is left."""

from __future__ import annotations

from collections.abc import Callable

from nodeclient.core.effects import Level
from nodeclient.keep.resources import KeepResources
from nodeclient.keep.round_workers import RoundWorkers
from nodeclient.keep.worker_channel import WorkerChannel
from nodeclient.parts.arenas import NoMemoryError
from workerlib.keep.arena import ArenaError, ArenaSizes
from workerlib.keep.channel_messages import RefusedMemory, Reserve, Reserved


class ArenaGiver:
    """Sends arenas to the workers of one round."""

    def __init__(
        self,
        resources: KeepResources,
        channel: WorkerChannel,
        workers: RoundWorkers,
        on_given: Callable[[int, bool], None],
    ) -> None:
        """Serve these workers; `on_given` gets the local rank of each one that has got an arena, and if it is lent."""
        self._resources = resources
        self._channel = channel
        self._workers = workers
        self._on_given = on_given
        self._over = False

    def give_up(self) -> None:
        """Give no more arenas: another round begins."""
        self._over = True

    def take(self, local_rank: int, wanted: Reserve) -> None:
        """Take a worker's request for memory."""
        if self._workers.memory.begin(local_rank, wanted):
            self._resources.tasks.spawn(self._reserve(local_rank, wanted), name="reserve")

    def lend(self) -> None:
        """Lend the memory of workers that have ended to those that have none for the same state."""
        if self._over or self._workers.alike is False:
            return
        # A worker that a signal has stopped saves nothing.
        while (loan := self._workers.memory.lend(self._channel.connected - self._channel.stopped)) is not None:
            file = self._resources.arenas.file_of(loan.owner)
            if file is not None:
                self._send(loan.borrower, file, lent=True)

    async def _reserve(self, local_rank: int, wanted: Reserve) -> None:
        resources, memory = self._resources, self._workers.memory
        try:
            file = await resources.arenas.reserve(local_rank, ArenaSizes.at_least(wanted.generation, wanted.small))
        except (NoMemoryError, ArenaError) as error:
            text = f"the state of local rank {local_rank} is not kept: {error}"
            resources.notify(Level.WARNING, text, "state_not_kept")
            small = await resources.arenas.reserve_small(local_rank, wanted.small)
            if not self._over:
                self._channel.send(local_rank, RefusedMemory(str(error)), [] if small is None else [small])
        else:
            memory.give(local_rank)
            if not self._over:
                self._send(local_rank, file)
        finally:
            memory.reserving.discard(local_rank)
        # Meanwhile this worker may have ended, or another one whose memory it now needs.
        self.lend()

    def _send(self, local_rank: int, file: int, *, lent: bool = False) -> None:
        disk = self._resources.disk
        self._channel.send(local_rank, Reserved(0.0 if disk is None else disk.offer.every_s, lent), [file])
        if local_rank in self._channel.connected:
            self._on_given(local_rank, lent)
