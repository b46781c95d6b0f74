"""A link to a host ends the host's program in time, whatever moment it is closed at."""

import asyncio
from pathlib import Path

import pytest

from coordinatord.runtime.tasks import Tasks
from nodeclient.remote.bring_up import HostLink
from nodeclient.remote.link_messages import Errand

CLOSES_ITS_OUTPUT = """#!/bin/sh
exec >&- 2>&-
exec cat
"""


@pytest.mark.slow
async def test_a_link_that_waits_for_the_end_of_its_program_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ssh := tmp_path / "ssh").write_text(CLOSES_ITS_OUTPUT)
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    async def write(host: str, fd: int, lines: bytes) -> None:
        pytest.fail(f"{host}, {fd}: {lines!r}")

    loop, problems = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: problems.append(context))
    link = await HostLink.open("me@elsewhere", "python3", write, Tasks())
    asking = loop.create_task(link.ask(Errand(None)))
    [errors] = (task for task in asyncio.all_tasks() if task.get_name() == "errors of me@elsewhere")
    await asyncio.wait([errors])
    for _ in range(10):  # it finds that both outputs are over
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    await link.close(0)
    assert problems == []
