"""The requests of a simulated coordinator to etcd: real coroutines, each of which is resumed by an answer.

`SimulatedGateway` takes the place of their `Gateway`. Its requests go to the simulated `etcd`, and are repeated like
those of the real one, until one is answered or the time is up.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from coordinatord.protocol.errors import OperationalError
from coordinatord.store.etcd.gateway import REQUEST_WITHIN_S, TRY_WITHIN_S, WATCH_SILENT_S_MAX, Gateway
from coordinatord.store.etcd.refusals import EtcdAwayError
from coordinatord.store.etcd.requests import EtcdAnswer, KeyValue, parsed, text_of

if TYPE_CHECKING:  # coordinators have tasks
    from tests.sim.etcd_coordinator import EtcdCoordinator

Result = TypeVar("Result")
Answered = Callable[[Any], None]


class _Wait:
    """What a coroutine awaits: `begin` receives a callback for the answer or the error."""

    def __init__(self, begin: Callable[[Answered], None]) -> None:
        self.begin = begin

    def __await__(self) -> Generator[_Wait, Any, Any]:
        return (yield self)


class SimulatedGateway(Gateway):
    """The requests of one coordinator."""

    def __init__(self, by: EtcdCoordinator) -> None:
        self._by = by

    async def call(self, path: str, body: Mapping[str, Any], try_within_s: float | None = None) -> EtcdAnswer:
        """Return the answer to a request. Raises `EtcdAwayError` if there is none, and `EtcdRefusedError`."""
        del try_within_s  # nothing is waited for here

        def begin(answered: Answered) -> None:
            tries = int(REQUEST_WITHIN_S / TRY_WITHIN_S)
            for number in range(tries):
                self._by.world.queue.after(number * TRY_WITHIN_S, self._by.when_awake, ask)
            self._by.world.queue.after(
                REQUEST_WITHIN_S, take, EtcdAwayError(f"no answer within {REQUEST_WITHIN_S:g} s")
            )
            open_tries.append(answered)

        def ask() -> None:
            if open_tries and self._by.turn == turn:
                self._by.world.etcd.request(self._by, path, body, take)

        def take(answer: Any) -> None:
            if open_tries:
                open_tries.pop()(answer)

        open_tries: list[Answered] = []
        turn = self._by.turn
        return parsed(await _Wait(begin))

    async def watch(self, key: bytes) -> AsyncGenerator[KeyValue | None]:
        """Yield the leader key as it is now and after each change; read it anew where the watch is silent."""
        before = -1  # no revision
        while True:
            now = await self.call("/v3/kv/range", {"key": text_of(key)})
            written_at = 0 if now.first is None else now.first.mod_revision
            if written_at != before:
                yield now.first
            before = written_at
            await self._change_after(now.header.revision)

    async def _change_after(self, revision: int) -> None:
        """Wait until the leader key changes, or the watch was silent for too long."""

        def begin(answered: Answered) -> None:
            self._by.world.queue.after(WATCH_SILENT_S_MAX, answered, None)
            self._by.world.etcd.watch(self._by, revision + 1, lambda: answered(None))

        await _Wait(begin)


class EtcdTask:
    """A coroutine in progress. Operational errors end it by `failed`; others are bugs."""

    def __init__(
        self,
        by: EtcdCoordinator,
        work: Coroutine[_Wait, Any, Result],
        done: Callable[[Result], None],
        failed: Callable[[OperationalError], None],
    ) -> None:
        """Begin the coroutine; its result goes to `done`."""
        self._by = by
        self._work = work
        self._done = done
        self._failed = failed
        self._waits = 0
        """The number of its present wait, negative once it is over: answers to earlier ones are dropped."""
        self._go_on(lambda: work.send(None))

    @property
    def is_over(self) -> bool:
        """Whether the coroutine has ended."""
        return self._waits < 0

    def drop(self) -> None:
        """Cancel the coroutine."""
        self._waits = -1
        self._work.close()

    def _go_on(self, step: Callable[[], _Wait]) -> None:
        self._waits += 1
        try:
            wait = step()
        except StopIteration as stop:
            self._waits = -1
            self._done(stop.value)
        except OperationalError as error:
            self._waits = -1
            self._failed(error)
        else:
            number = self._waits
            wait.begin(lambda answer: self._by.when_awake(lambda: self._take(number, answer)))

    def _take(self, number: int, answer: Any) -> None:
        if number != self._waits:
            return
        if isinstance(answer, Exception):
            self._go_on(lambda: self._work.throw(answer))
        else:
            self._go_on(lambda: self._work.send(answer))
