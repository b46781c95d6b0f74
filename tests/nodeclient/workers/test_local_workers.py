"""The local worker group, with real processes, also of workers that are held for the next round."""

import asyncio
import os
import re
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest
from msgspec.structs import replace

from nodeclient.output.output import WorkerStreams
from nodeclient.workers.leftover_processes import EndedWorker
from nodeclient.workers.local_workers import LocalWorkers
from nodeclient.workers.process_tree import kill, marked, pidfds_by_mark, statuses
from nodeclient.workers.spawn import SpawnError, WorkerCommand
from tests.support.own_outputs import own_outputs
from tests.support.programs import TIMEOUT_S

pytestmark = [pytest.mark.timeout(TIMEOUT_S), pytest.mark.slow]


@dataclass
class Group:
    """A worker group that records its exits, and a FIFO on which its workers can write to the test."""

    fifo: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(16))
    exits: asyncio.Queue[tuple[int, int]] = field(default_factory=asyncio.Queue)
    outlived: asyncio.Queue[tuple[int, Sequence[int]]] = field(default_factory=asyncio.Queue)
    """The local ranks of workers that exited before the rest of their groups, and what was left of these."""
    left: dict[int, int] = field(default_factory=dict)
    """The pidfds of what workers have left behind, by process id."""

    def __post_init__(self) -> None:
        os.mkfifo(self.fifo)
        # Open for both, so that it has no end and opening does not wait for a writer.
        self.lines = open(os.open(self.fifo, os.O_RDWR), "rb", buffering=0)  # noqa: SIM115, PTH123  # closed by the fixture
        self.workers = LocalWorkers(
            self.mark,
            lambda *ended: self.exits.put_nowait(ended),
            self._leave,
            on_outlived=lambda *outlived: self.outlived.put_nowait(outlived),
        )

    async def _leave(self, ended: Sequence[EndedWorker]) -> None:
        groups = {worker.group: worker.mark for worker in ended if worker.group is not None}
        for pidfds in pidfds_by_mark([worker.mark for worker in ended], groups).values():
            self.left |= pidfds

    def launch(self, commands: Sequence[WorkerCommand]) -> None:
        """Start workers that write to the outputs of this process."""
        self.workers.start(commands, own_outputs(len(commands)))

    def start(self, *scripts: str) -> None:
        """Start a shell for each script."""
        self.launch([self.shell(script) for script in scripts])

    def shell(self, script: str) -> WorkerCommand:
        """Return a worker that runs a script of the shell."""
        return WorkerCommand(("sh", "-c", script), {**os.environ, "FIFO": str(self.fifo)})

    def python(self, statements: str) -> WorkerCommand:
        """Return a worker that prints "ready" and then, with signals blocked, runs the statements."""
        program = (
            "import os, signal\n"
            "def say(word): os.write(fifo, word.encode() + b'\\n')\n"
            "def expect(signum): signal.sigwait({signum})\n"
            "fifo = os.open(os.environ['FIFO'], os.O_WRONLY)\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})\n"
            f"say('ready'); {statements}\n"
        )
        return WorkerCommand((sys.executable, "-I", "-S", "-c", program), {**os.environ, "FIFO": str(self.fifo)})

    async def line(self) -> str:
        """Return the next line of a worker."""
        return (await asyncio.to_thread(self.lines.readline)).decode().rstrip("\n")

    async def pidfd(self) -> int:
        """Return a pidfd of the process whose number is the next line."""
        return os.pidfd_open(int(await self.line()))

    def end_the_left(self) -> None:
        """End what workers have left behind."""
        kill(self.left)
        for pidfd in self.left.values():
            os.close(pidfd)
        self.left.clear()

    def assert_nothing_is_left(self) -> None:
        """Check that neither a worker nor a descendant is left, nor a zombie."""
        assert self.workers.pids == frozenset()
        assert marked(self.mark) == []
        assert [status for status in statuses() if status.parent == os.getpid() and status.dead] == []


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path / "fifo")
    yield group
    os.write(group.lines.fileno(), b"\n")  # for a thread that still waits for a line
    group.lines.close()
    group.workers.release_parked()
    await group.workers.sweep()
    group.end_the_left()
    group.assert_nothing_is_left()


async def _ended(*pidfds: int) -> None:
    """Wait until the processes have ended, and close the pidfds."""
    loop = asyncio.get_running_loop()
    for pidfd in pidfds:
        event = asyncio.Event()
        loop.add_reader(pidfd, event.set)
        await event.wait()
        loop.remove_reader(pidfd)
        os.close(pidfd)


async def test_fifty_that_end_at_once_are_each_reported_once_as_subprocess_does_and_leave_no_zombie(
    group: Group,
) -> None:
    ends = {"exit 0": 0, "exit 7": 7, "kill -KILL $$": -9, "kill -TERM $$": -15, "exit 255": 255}
    group.start(*[*ends] * 10)
    exits = sorted([await group.exits.get() for _ in range(50)])
    assert exits == list(enumerate([*ends.values()] * 10))
    await group.workers.sweep()
    assert group.exits.empty()


async def test_what_a_worker_leaves_in_its_group_when_it_exits_after_a_signal_is_told(group: Group) -> None:
    stays = "child = os.fork(); child or expect(signal.SIGUSR1); say(str(child)); expect(signal.SIGTERM); os._exit(0)"
    # A child of the shell that had not become another program yet would lose the signal, as the shell traps it.
    trapping = "trap 'exit 0' TERM; sh -c 'echo $$ > $FIFO; exec sleep 1000' & wait"
    group.launch([group.python(stays), group.shell(trapping)])
    lines = {await group.line() for _ in range(3)} - {"ready"}
    group.workers.terminate()
    local_rank, [pid] = await group.outlived.get()
    assert local_rank == 0
    assert str(pid) in lines
    assert await group.exits.get() == (1, 0), "the child of a shell gets the signal as well"
    await group.workers.sweep()
    assert group.exits.get_nowait() == (0, 0)
    assert group.outlived.empty(), "what a shell leaves may be the training"


async def test_a_worker_that_ignores_sigterm_is_swept(group: Group) -> None:
    deaf = group.python("expect(signal.SIGTERM); say('term'); expect(signal.SIGUSR1)")
    group.launch([deaf, group.shell("exec sleep 1000")])
    assert await group.line() == "ready"
    group.workers.terminate()
    assert await group.line() == "term"
    assert await group.exits.get() == (1, -15)
    assert group.exits.empty()
    await group.workers.sweep()
    assert group.exits.get_nowait() == (0, -9)


GRANDCHILDREN = """
sleep 1000 & echo $! > $FIFO
env -i sleep 1000 & echo $! > $FIFO
setsid sh -c 'echo $$ > $FIFO; exec sleep 1000' &
read pid < $READY
(setsid sh -c 'sleep 1000 & echo $! > $FIFO; exec sleep 1000' &)
"""


def _with_grandchildren(group: Group, folder: Path, end: str) -> tuple[WorkerCommand, IO[bytes]]:
    """Return a worker that starts four processes and then runs `end`, and a FIFO for which it waits in between.

    The FIFO is open for both, so that it has no end. A shell that opened it for its second line, while the writer of
    the first one was about to close it, would read its end instead.
    """
    ready = folder / "ready"
    os.mkfifo(ready)
    command = group.shell(f"{GRANDCHILDREN}{end}")
    lines = open(os.open(ready, os.O_RDWR), "wb", buffering=0)  # noqa: SIM115, PTH123  # closed by the test
    return replace(command, environ={**command.environ, "READY": str(ready)}), lines


async def test_a_worker_that_is_killed_takes_only_its_process_group_with_it(group: Group, tmp_path: Path) -> None:
    command, ready = _with_grandchildren(group, tmp_path, "exec sleep 1000")
    with ready:
        group.launch([command])
        in_group, elsewhere = [await group.pidfd() for _ in range(2)], [int(await group.line())]
        ready.write(b"\n")
        elsewhere.append(int(await group.line()))
    await group.workers.sweep()
    await _ended(*in_group)
    assert group.exits.get_nowait() == (0, -9)
    assert {*elsewhere} <= {*group.left}


async def test_all_that_a_worker_has_left_behind_lives_on(group: Group, tmp_path: Path) -> None:
    command, ready = _with_grandchildren(group, tmp_path, "read line < $READY; exit 0")
    with ready:
        group.launch([command])
        grandchildren = [int(await group.line()) for _ in range(3)]
        ready.write(b"\n")
        grandchildren.append(int(await group.line()))
        ready.write(b"\n")
        assert await group.exits.get() == (0, 0)
    group.workers.terminate()
    await group.workers.sweep()
    assert {*grandchildren} <= {*group.left}


async def test_what_is_left_of_a_worker_that_was_reaped_long_ago_is_found(group: Group) -> None:
    group.start("echo $(setsid sh -c 'sleep 1000 > /dev/null & echo $!') > $FIFO", "sleep 1000")
    daemon = int(await group.line())
    assert await group.exits.get() == (0, 0)
    await group.workers.sweep()
    assert {*group.left} == {daemon}


async def test_a_shell_that_is_killed_takes_the_script_with_it(group: Group) -> None:
    group.start("sleep 1000 & echo $! > $FIFO; wait")
    script = await group.pidfd()
    os.kill(next(iter(group.workers.pids)), signal.SIGKILL)
    await _ended(script)
    assert await group.exits.get() == (0, -9)
    await group.workers.sweep()
    assert not group.left


async def test_a_script_may_save_its_state_though_the_shell_around_it_died(group: Group) -> None:
    script = group.python("expect(signal.SIGTERM); say('saving'); expect(signal.SIGUSR1); say('saved')")
    around = WorkerCommand(("sh", "-c", '"$@"; exit 1', "sh", *script.argv), script.environ)
    group.launch([around])
    assert await group.line() == "ready"
    shell = os.pidfd_open(*group.workers.pids)
    group.workers.terminate()
    assert await group.line() == "saving"
    await _ended(shell)
    assert group.exits.empty()
    os.killpg(next(iter(group.workers.pids)), signal.SIGUSR1)
    assert await group.line() == "saved"
    assert await group.exits.get() == (0, -15)


SAVES = "say('saved' if os.waitpid(child, os.WNOHANG) == (0, 0) else 'lost its child')"
"""The end of a training script, which needs the process that loads its data to save its state."""


async def test_who_catches_sigterm_is_asked_and_its_children_are_its_own_business(group: Group) -> None:
    catches = f"signal.signal(signal.SIGTERM, lambda *_: {SAVES}); signal.pthread_sigmask(signal.SIG_SETMASK, ())\n"
    loads = "child = os.fork(); child or signal.signal(signal.SIGTERM, signal.SIG_DFL); say(f'{child > 0}')\n"
    group.launch([group.python(f"{catches}{loads}while True: signal.sigtimedwait([], 0.1)")])
    assert {await group.line() for _ in range(3)} == {"ready", "True", "False"}, "both are ready"
    group.workers.terminate()
    assert await group.line() == "saved"
    assert group.exits.empty()


async def test_a_shell_that_traps_sigterm_does_not_keep_it_from_its_child(group: Group) -> None:
    script = group.python("expect(signal.SIGTERM); say('saved')")
    around = WorkerCommand(("sh", "-c", "trap 'exit 7' TERM; \"$@\"; exit 1", "sh", *script.argv), script.environ)
    group.launch([around])
    assert await group.line() == "ready"
    group.workers.terminate()
    assert await group.line() == "saved"
    assert await group.exits.get() == (0, 7)


@pytest.mark.parametrize(
    ("name", "content", "mode", "exit_code", "message"),
    [
        ("absent", None, 0, 127, "was not found: there is no such file"),
        ("plain.py", "print()", 0o644, 126, "may not be executed: make it executable"),
        ("headless", "exit 0", 0o755, 126, "Exec format error"),
        ("lost", "#!/no/such/interpreter\n", 0o755, 127, "the interpreter that its first line names is not"),
    ],
)
async def test_a_command_that_cannot_be_started_is_explained(
    group: Group, tmp_path: Path, name: str, content: str | None, mode: int, exit_code: int, message: str
) -> None:
    program = tmp_path / name
    if content is not None:
        program.write_text(content)
        program.chmod(mode)
    bad = WorkerCommand((str(program),), os.environ)
    with pytest.raises(SpawnError, match=message) as caught:
        group.launch([group.shell("exec sleep 1000"), bad, group.shell("exec sleep 1000")])
    assert (caught.value.local_rank, caught.value.exit_code) == (1, exit_code)
    assert group.exits.empty()
    await group.workers.sweep()
    assert group.exits.get_nowait() == (0, -9)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (WorkerCommand(("no-such-command",), os.environ), "in no directory of PATH"),
        (WorkerCommand(("a\0b",), os.environ), "null byte"),
        (WorkerCommand(("true",), os.environ, frozenset({100_000})), r"CPUs \[100000\] are not for this process"),
    ],
    ids=["unknown", "null byte", "CPUs"],
)
async def test_a_command_that_cannot_be_run_is_explained(group: Group, command: WorkerCommand, message: str) -> None:
    with pytest.raises(SpawnError, match=message):
        group.launch([command])


async def test_workers_inherit_no_open_file(group: Group) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    program = (
        "import os; fds = [fd for fd in range(1024) if os.path.exists(f'/proc/self/fd/{fd}')]; "
        "print(fds, file=open(os.environ['FIFO'], 'w'))"
    )
    command = WorkerCommand((sys.executable, "-I", "-S", "-c", program), {"FIFO": str(group.fifo)})
    group.launch([command])
    assert await group.line() == "[0, 1, 2]"
    os.close(read_end)
    os.close(write_end)


async def test_workers_start_with_default_signals(group: Group) -> None:
    # The C library keeps a few to itself, and the program that started this process may have left them in any state.
    everyday = sum(1 << (signum - 1) for signum in signal.valid_signals())
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    previous = {signum: signal.signal(signum, signal.SIG_IGN) for signum in (signal.SIGHUP, signal.SIGQUIT)}
    try:
        group.start("grep -E '^Sig(Blk|Ign)' /proc/self/status | tr -d '\\n' > $FIFO; echo > $FIFO")
        found_blocked, ignored = (int(mask, 16) for mask in re.findall("[0-9a-f]{16}", await group.line()))
        assert (found_blocked | ignored) & everyday == 0
        await group.workers.sweep()
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


async def test_each_worker_has_the_streams_that_it_is_given(group: Group, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("out 0", "err 0", "out 1", "err 1")]
    fds = [os.open(file, os.O_WRONLY | os.O_CREAT) for file in files]
    streams = [WorkerStreams(fds[0], fds[1], tmp_path, {}), WorkerStreams(fds[2], fds[3], tmp_path, {})]
    group.workers.start([group.shell(f"echo out {rank}; echo err {rank} >&2") for rank in range(2)], streams)
    await group.exits.get()
    await group.exits.get()
    assert [file.read_text() for file in files] == [f"{file.name}\n" for file in files]
    for fd in fds:
        os.close(fd)


async def test_the_process_of_a_worker_is_known_even_after_its_end(group: Group, tmp_path: Path) -> None:
    group.start("echo $$ > $FIFO", "exec sleep 1000")
    pid = int(await group.line())
    assert await group.exits.get() == (0, 0)
    await group.workers.sweep()
    assert group.workers.pid_of(0) == pid
    assert group.workers.pid_of(1) not in {0, pid}
    bad = WorkerCommand((str(tmp_path / "absent"),), os.environ)
    with pytest.raises(SpawnError):
        group.launch([bad, bad])
    assert [group.workers.pid_of(rank) for rank in range(2)] == [0, 0]


async def test_a_worker_leads_a_session_reads_nothing_and_runs_on_its_cpus_with_what_it_starts(group: Group) -> None:
    cpu = min(os.sched_getaffinity(0))
    allowed = "$(grep Cpus_allowed_list /proc/self/status)"
    command = group.shell(f'echo "$(ps -o sid= -p $$ | tr -d " ") $$ $(cat | wc -c) {allowed}" > $FIFO')
    group.launch([replace(command, cpus=frozenset({cpu}))])
    session, pid, size, _, cpus = (await group.line()).split()
    assert (session, size, cpus) == (pid, "0", str(cpu))


# Workers that are held for the next round

WITH_DAEMON = "echo {rank} $(setsid sh -c 'sleep 1000 > /dev/null & echo $!') > $FIFO; exec sleep 1000"
"""A worker that starts a process which is not its child, as some loggers do, and writes its number once all others that
it took have ended."""

WITH_CHILD = f"""exec {sys.executable} -I -S -c 'import os
child = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1000")
open(os.environ["FIFO"], "w").write("{{rank}} %d\\n" % child)
os.wait()'"""
"""A worker that has a child in its process group, whose number it writes. It is no shell by then: the death of one
would end the child."""


async def start_two(group: Group, script: str = WITH_DAEMON, stays: Sequence[int] = ()) -> list[int]:
    """Start two workers, except for those that were held and stay; return the numbers that new ones have written."""
    commands = [group.shell(script.format(rank=rank)) for rank in range(2)]
    group.workers.start(commands, own_outputs(2), dict.fromkeys(stays, lambda *_: None))
    lines = sorted([await group.line() for _ in range(2 - len(stays))])
    return [int(line.split()[1]) for line in lines]


def park_both(group: Group) -> None:
    for local_rank in range(2):
        group.workers.park(local_rank)


async def test_one_that_is_dismissed_ends_and_the_other_one_lives_on(group: Group) -> None:
    daemons = await start_two(group)
    pids, stays = group.workers.pids, group.workers.pid_of(1)
    park_both(group)
    await group.workers.sweep()
    assert {*daemons, *pids} <= set(marked(group.mark)), "all are held, so their daemons live on"
    await group.workers.dismiss({0}, TIMEOUT_S)
    assert group.exits.get_nowait() == (0, -15)
    assert group.workers.pids == {stays}
    assert {*group.left} == {daemons[0]}
    group.end_the_left()
    assert {*marked(group.mark)} == {stays, daemons[1]}


async def test_one_that_died_while_it_was_held_is_swept_after_the_next_round(group: Group) -> None:
    [child, _] = await start_two(group, WITH_CHILD)
    park_both(group)
    await group.workers.sweep()
    os.kill(group.workers.pid_of(0), signal.SIGKILL)
    assert await group.exits.get() == (0, -9)
    await start_two(group, WITH_CHILD, stays=[1])
    assert child not in group.left, "its worker has not been swept"
    park_both(group)
    await group.workers.sweep()
    assert {*group.left} == {child}
    assert group.workers.pids == {group.workers.pid_of(0), group.workers.pid_of(1)}
    await start_two(group, WITH_CHILD, stays=[0, 1])


async def test_no_round_starts_while_a_worker_is_dismissed(group: Group) -> None:
    await start_two(group)
    park_both(group)
    dismissing = asyncio.ensure_future(group.workers.dismiss({0}, TIMEOUT_S))
    await asyncio.sleep(0)
    with pytest.raises(AssertionError, match="was not swept"):
        await start_two(group)
    await dismissing


async def test_the_daemon_of_a_worker_that_is_held_lives_on(group: Group) -> None:
    daemons = await start_two(group)
    held = group.workers.pid_of(0)
    group.workers.park(0)
    await group.workers.sweep()
    assert group.exits.get_nowait() == (1, -9)
    assert {*group.left} == {daemons[1]}
    group.end_the_left()
    assert {*marked(group.mark)} == {held, daemons[0]}
