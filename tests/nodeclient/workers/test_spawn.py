"""Processes that were started, and that the system then lets nobody watch."""

import errno
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from nodeclient.forkserver.server_process import ForkServer
from nodeclient.shell.embedded_coordinator import STANDALONE, EmbeddedCoordinator
from nodeclient.shell.timed_command import TimedCommand
from nodeclient.workers.spawn import WorkerCommand

SLEEP = WorkerCommand(("sleep", "1000"), os.environ)


async def run_command() -> None:
    end = await TimedCommand("mark").run(SLEEP, within_s=1000.0)
    raise OSError(end.problem)


async def start_parent() -> None:
    ForkServer(SLEEP, modules=None)


async def start_coordinator() -> None:
    async with EmbeddedCoordinator("text") as embedded:
        await embedded.start(*STANDALONE, shared=False)


@pytest.mark.slow
@pytest.mark.parametrize("start", [run_command, start_parent, start_coordinator])
async def test_a_process_that_cannot_be_watched_is_ended(
    start: Callable[[], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def refuse(pid: int) -> int:
        started.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        await start()
    [pid] = started
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
