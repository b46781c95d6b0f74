"""The way out of a round for a worker that takes part in the next one as the same process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from workerlib.keep.kept_errors import LeftRoundError
from workerlib.keep.kept_objects import KeptObject
from workerlib.keep.planned_end import PlannedEnd
from workerlib.keep.process_hooks import ProcessHooks


class RoundExit:
    """Lets the training thread go, which the keeper of the round may hold, and then the keeper itself."""

    def __init__(
        self,
        planned_end: PlannedEnd,
        hooks: ProcessHooks,
        objects: Mapping[str, KeptObject],
        whole: threading.Lock,
        stands_still: Callable[[], bool],
        break_off: Callable[[], None],
        *,
        is_sharded: bool,
    ) -> None:
        """Begin closed. Training stands still because `whole` is held, if `stands_still` says so.

        `break_off` is called by the training thread when it is out of the round.
        """
        self._planned_end = planned_end
        self._hooks = hooks
        self._objects = objects
        self._whole = whole
        self._stands_still = stands_still
        self._break_off = break_off
        self._open = False
        self.is_sharded = is_sharded
        """Whether a rank has only a part of the state: then its tensors are bound to the process group of this
        round."""

    def check(self) -> None:
        """Go on in this round. Raises `LeftRoundError` if it is over for this worker."""
        if self._open:
            raise LeftRoundError

    def open(self) -> None:
        """Have `LeftRoundError` raised in the training thread: at once if it stands still, else in its next step."""
        self._open = True
        self._planned_end.release()
        if self._stands_still():
            with suppress(RuntimeError):  # the training thread has not come to it
                self._whole.release()

    def leave(self) -> None:
        """Leave nothing of the keeper behind in this process: the next round has another one."""
        self._hooks.remove()
        self._break_off()
        self._planned_end.close()
        for kept in self._objects.values():
            kept.forget_step()
