"""The programs that test a host: how they end, and that nothing of them stays."""

import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from coordinatord.protocol.pair_messages import PairOrder, PairResult
from nodeclient.access.keyring import AccessSettings
from nodeclient.core.events import HealthChecked, PairTested
from nodeclient.shell.host_programs import HostCheck, HostPrograms
from nodeclient.workers.process_tree import marked
from nodeclient.workers.spawn import WorkerCommand

pytestmark = pytest.mark.slow

LONG_S = 120.0


Script = Callable[[PairOrder], str]


class Stage:
    """The tests of one host, of which a shell script is the program of a test with another node."""

    def __init__(self, health_check: Sequence[str] = (), pair_test: Script = lambda _: "") -> None:
        self.ends: list[HealthChecked | PairTested] = []
        self._mark = secrets.token_hex(16)

        def pair_command(order: PairOrder) -> WorkerCommand:
            return WorkerCommand(("sh", "-c", pair_test(order)), os.environ)

        check = HostCheck(health_check, {}, (), AccessSettings(), self._mark, reads_facts=False)
        self.tests = HostPrograms(check, pair_command, self._mark, self.ends.append)

    async def await_no_process(self) -> None:
        """Wait until none of its processes is left."""
        async with asyncio.timeout(LONG_S):
            while self.tests.pids or marked(self._mark):  # noqa: ASYNC110 - the kernel's own end of a process
                await asyncio.sleep(0)


async def end_of(argv: Sequence[str], within_s: float = LONG_S) -> HealthChecked:
    """Run a health check; return how it ended, once none of its processes is left."""
    stage = Stage(argv)
    await stage.tests.check_health(within_s)
    await stage.await_no_process()
    [end] = stage.ends
    assert isinstance(end, HealthChecked)
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


async def test_no_command_is_started_while_the_one_before_lives() -> None:
    stage = Stage(["sleep", "1000"])
    await asyncio.gather(*(stage.tests.check_health(0.2) for _ in range(2)))
    text = "the one before still hangs, although it was killed: see the kernel's log (dmesg)"
    assert stage.ends == [HealthChecked(None, text), HealthChecked(None, "it did not end within 0.2 s")]
    await stage.await_no_process()


async def test_a_command_that_cannot_be_started_says_why() -> None:
    end = await end_of(["no-such-check"])
    assert end == HealthChecked(
        None,
        "the command 'no-such-check' was not found: it is in no directory of PATH; install it on this host, or give its"
        " full path",
    )


def order(number: int, within_s: float = LONG_S) -> PairOrder:
    return PairOrder(number, 0, "n2", "127.0.0.1", 1, within_s)


PRODUCT = """echo '{"number": 3, "gflops": 5.0, "mb_s": null}'"""
SUM = """echo '{"number": 3, "gflops": 5.0, "mb_s": 7.5, "wrong": true}'"""


@pytest.mark.parametrize(
    ("script", "result"),
    [
        (f"{PRODUCT}; echo a warning; {SUM}; echo another", PairResult(3, 5.0, 7.5, wrong=True)),
        (f"{PRODUCT}; exit 7", PairResult(3, 5.0, None, text="exit code 7")),
        ("echo '{}'", PairResult(3, None, None, text="{}")),
        ("", PairResult(3, None, None, text="its test printed nothing")),
        ("echo no such file; exit 2", PairResult(3, None, None, text="exit code 2: no such file")),
    ],
    ids=["figures", "early end", "strange", "nothing", "error"],
)
async def test_the_last_figures_of_a_test_with_another_node_count(script: str, result: PairResult) -> None:
    stage = Stage(pair_test=lambda _: script)
    await stage.tests.test_pair(order(3))
    assert stage.ends == [PairTested(result)]
    await stage.await_no_process()


async def test_a_test_that_takes_too_long_is_killed_and_keeps_the_figures_that_it_came_to() -> None:
    stage, within_s, told = Stage(pair_test=lambda _: f"{PRODUCT}; sleep 1000 & wait"), 0.1, False
    while not told:  # a busy host may not come to them in so short a time
        within_s *= 2
        await stage.tests.test_pair(order(3, within_s))
        end = stage.ends[-1]
        told = end == PairTested(PairResult(3, 5.0, None, text=f"it did not end within {within_s:g} s"))
        assert told or within_s < LONG_S
    await stage.await_no_process()


async def test_a_test_is_ended_with_its_group_by_the_next_order_and_by_none(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    stage = Stage(pair_test=lambda wanted: f"sleep 1000 & echo {wanted.number} >{begun}; wait")
    async with asyncio.TaskGroup() as tasks:
        for number in (1, 2):
            tasks.create_task(stage.tests.test_pair(order(number)))
            assert (await asyncio.to_thread(begun.read_text)).strip() == str(number)
        await stage.tests.test_pair(None)
        await stage.tests.await_pair_end()
        assert not stage.tests.pids
    await stage.await_no_process()
    assert [end.result.number for end in stage.ends if isinstance(end, PairTested)] == [1, 2]


async def test_of_orders_that_come_at_once_only_the_last_one_is_tested() -> None:
    stage = Stage(pair_test=lambda wanted: f"""echo '{{"number": 1, "gflops": {wanted.number}.0, "mb_s": 1.0}}'""")
    await asyncio.gather(*(stage.tests.test_pair(order(number)) for number in (1, 2)))
    results = [end.result for end in stage.ends if isinstance(end, PairTested)]
    assert results[-1] == PairResult(2, 2.0, 1.0)
    await stage.await_no_process()
