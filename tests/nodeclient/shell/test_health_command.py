"""The command that checks a host: how it ends, and that nothing of it stays."""

import asyncio
import secrets
import sys
from collections.abc import Sequence

import pytest

from nodeclient.core.events import HealthChecked
from nodeclient.shell.health_command import HealthCommand
from nodeclient.workers.process_tree import marked

pytestmark = pytest.mark.slow

LONG_S = 120.0


async def end_of(argv: Sequence[str], within_s: float = LONG_S) -> HealthChecked:
    """Run a command; return how it ended, once none of its processes is left."""
    ends: list[HealthChecked] = []
    mark = secrets.token_hex(16)
    command = HealthCommand(argv, mark, ends.append)
    await command.run(within_s)
    assert not command.pids
    async with asyncio.timeout(LONG_S):
        while marked(mark):  # noqa: ASYNC110 - the kernel's own end of a process
            await asyncio.sleep(0)
    [end] = ends
    return end


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("exit 0", HealthChecked(0, "")),
        ("echo one; echo ' two ' >&2; echo; exit 2", HealthChecked(2, "two")),
        ("printf 'no end of line \\377'; exit 1", HealthChecked(1, "no end of line \ufffd")),
        ("kill -SEGV $$", HealthChecked(-11, "")),
        ("sleep 1000 & echo it leaves one behind; exit 2", HealthChecked(2, "it leaves one behind")),
        ("read line || echo nobody types; exit 0", HealthChecked(0, "nobody types")),
    ],
    ids=["quiet", "last line", "bytes", "signal", "leftover", "stdin"],
)
async def test_the_end_of_a_command_is_its_exit_code_and_its_last_line(script: str, end: HealthChecked) -> None:
    assert await end_of(["sh", "-c", script]) == end


async def test_the_end_of_a_long_output_counts() -> None:
    program = "print('x' * 1_000_000); print('y' * 1_000_000); print('it is hot'); raise SystemExit(1)"
    assert await end_of([sys.executable, "-c", program]) == HealthChecked(1, "it is hot")


@pytest.mark.parametrize("script", ["sleep 1000 & wait", "trap '' TERM; sleep 1000", "yes"])
async def test_a_command_that_does_not_end_in_time_is_killed_with_its_group(script: str) -> None:
    end = await end_of(["sh", "-c", script], within_s=0.2)
    assert end.exit_code is None
    assert end.text.startswith("it did not end within 0.2 s")


async def test_a_command_that_cannot_be_started_says_why() -> None:
    end = await end_of(["no-such-check"])
    assert end == HealthChecked(
        None,
        "the command 'no-such-check' was not found: it is in no directory of PATH; install it on this host, or give its"
        " full path",
    )
