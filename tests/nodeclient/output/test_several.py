"""Several workers share a terminal, a pipe or a file: no line is lost, torn or mixed with another's."""

import signal
from pathlib import Path

import pytest

from nodeclient.output import pump, streams
from nodeclient.output.output_settings import Choice, OutputSettings, Streams
from tests.nodeclient.output.stage import Gate, Screen, by_rank, log_file, on_stage

pytestmark = pytest.mark.slow


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no worker for quiet that only waits for a processor."""
    monkeypatch.setattr(pump, "QUIET_S", 1_000.0)


BUSY = """
for number in range({lines}):
    out(f"{{rank}} out {{number}} {{'x' * (number % 120)}}\\n")
    if number % 50 == 0: err(f"{{rank}} err {{number}}\\n")
{end}
"""


def busy_lines(rank: int, lines: int) -> list[bytes]:
    """Return what `BUSY` writes to stdout and to stderr."""
    return [f"{rank} out {number} {'x' * (number % 120)}".encode() for number in range(lines)] + [
        f"{rank} err {number}".encode() for number in range(0, lines, 50)
    ]


def sorted_by_stream(lines: list[bytes]) -> list[bytes]:
    """Put the lines of stdout before those of stderr, each in the order in which they came."""
    return sorted(lines, key=lambda line: b" err " in line)


@pytest.mark.parametrize(
    "end",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        *(pytest.param(end, marks=pytest.mark.long) for end in ("", "os._exit(0)")),
    ],
)
@pytest.mark.usefixtures("patience")
async def test_every_line_arrives_whole_and_in_order_however_the_workers_end(end: str) -> None:
    async with on_stage() as stage:
        codes = await stage.run(*[BUSY.format(lines=20_000, end=end)] * 4)
    found = by_rank(stage.stderr.finish(), range(4))
    assert set(codes.values()) == {-signal.SIGKILL if "KILL" in end else 0}
    for rank, lines in found.items():
        assert sorted_by_stream(lines) == busy_lines(rank, 20_000)


@pytest.mark.usefixtures("patience")
async def test_lines_of_a_megabyte_stay_whole_among_others() -> None:
    async with on_stage() as stage:
        long = 'for _ in range(5): out("m" * 1_000_000 + "\\n")'
        await stage.run(long, BUSY.format(lines=5_000, end=""), long)
    found = by_rank(stage.stderr.finish(), range(3))
    assert found[0] == found[2] == [b"m" * 1_000_000] * 5
    assert sorted_by_stream(found[1]) == busy_lines(1, 5_000)


@pytest.mark.usefixtures("patience")
async def test_binary_junk_goes_through_unchanged(tmp_path: Path) -> None:
    junk = 'out(bytes(range(256)) * 4096); err(b"\\xff\\xfe\\x00" * 1000)'
    async with on_stage(OutputSettings(log_dir=tmp_path)) as stage:
        await stage.run(junk, junk)
    for rank in range(2):
        assert log_file(tmp_path, rank, "stdout") == bytes(range(256)) * 4096
        assert log_file(tmp_path, rank, "stderr") == b"\xff\xfe\x00" * 1000
    text = stage.stderr.finish()
    assert text.count(bytes(range(128, 256))) == 2 * 4096
    assert text.count(b"\xff\xfe\x00" * 1000 + b"\n") == 2


async def test_the_beginning_of_a_line_is_shown_when_nothing_more_comes_and_not_torn(tmp_path: Path) -> None:
    first, second = (Gate(tmp_path / str(rank)) for rank in range(2))
    async with on_stage() as stage:
        stage.start(f'out("loading"); {first.wait}; out(" done\\n")', f'{second.wait}; out("between\\nand ")')
        await stage.stderr.shows(rb"\[rank 0\] loading$")
        await second.open()
        await stage.stderr.shows(rb"and \n")
        await first.open()
        await stage.ended()
    expected = b"[rank 0] loading\n[rank 1] between\n[rank 1] and \n[rank 0]  done\n"
    assert stage.stderr.finish() == expected


async def test_a_line_that_was_begun_goes_on_where_it_is_if_nobody_came_between(gate: Gate) -> None:
    async with on_stage() as stage:
        stage.start(f'out("loading"); {gate.wait}; out(" done\\nnext\\n")', "")
        await stage.stderr.shows(rb"\[rank 0\] loading$")
        await gate.open()
        await stage.ended()
    assert stage.stderr.finish() == b"[rank 0] loading done\n[rank 0] next\n"


async def test_stdout_and_stderr_may_lead_to_different_places() -> None:
    async with on_stage(stdout=Screen()) as stage:
        stage.stdout.start_reading()
        await stage.run(*['out("to stdout\\n"); err("to stderr\\n")'] * 2)
    assert by_rank(stage.stdout.finish(), range(2)) == {0: [b"to stdout"], 1: [b"to stdout"]}
    assert by_rank(stage.stderr.finish(), range(2)) == {0: [b"to stderr"], 1: [b"to stderr"]}


async def test_on_a_terminal_prefixes_have_colours_and_progress_is_one_live_line() -> None:
    async with on_stage(is_terminal=True) as stage:
        await stage.run('for n in range(50): err(f"\\r{n}%|###"); time.sleep(0.001)\nerr("\\n")', 'out("done\\n")')
    drawn = stage.stderr.finish()
    bar = b"\x1b[36m[rank 0]\x1b[0m "
    assert drawn.count(bar + b"49%|###\n") == 1
    assert b"\x1b[33m[rank 1]\x1b[0m done\n" in drawn
    assert drawn.count(b"\n") == 2
    for part in drawn.split(bar)[1:]:
        assert part.startswith(b"49%|###\n") or b"\r\x1b[K" in part


async def test_a_state_that_stays_is_shown_in_time(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    monkeypatch.setattr(streams, "STATES_EVERY_S", 0.05)
    monkeypatch.setattr(pump, "QUIET_S", 0.02)
    async with on_stage() as stage:
        stage.start(f'err("\\r1%"); err("\\r2%"); err("\\r3%"); {gate.wait}', "")
        await stage.stderr.shows(rb"\[rank 0\] 3%\n")
        await gate.open()
        await stage.ended()


async def test_a_state_stays_where_only_what_nobody_sees_comes_after_it(
    monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    monkeypatch.setattr(streams, "STATES_EVERY_S", 1_000.0)
    monkeypatch.setattr(pump, "QUIET_S", 0.02)
    async with on_stage() as stage:
        stage.start(f'err("1%\\r"); {gate.wait}; err("2%\\r\\x1b[?25h"); out("asks"); {gate.wait}; out("\\n")', "")
        for seen in (rb"1%\n", b"asks"):  # a question is shown when stderr has been quiet for longer
            await stage.stderr.shows(seen)
            await gate.open()
        await stage.ended()
    assert by_rank(stage.stderr.finish(), range(2))[0] == [b"1%", b"asks", b"2%"]


SCREEN = 'out(" ".join(os.environ.get(name, "-") for name in ("COLUMNS", "LINES", "FORCE_COLOR")) + "\\n")'


@pytest.fixture
def bare_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables about a screen."""
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("bare_screen")
async def test_workers_that_share_a_terminal_know_the_room_that_is_theirs() -> None:
    async with on_stage(is_terminal=True) as stage:
        await stage.run(SCREEN, SCREEN)
    assert stage.stderr.finish().count(b"70 24 1\n") == 2  # of 80, less "[rank 0] " and the last column


@pytest.mark.usefixtures("bare_screen")
@pytest.mark.parametrize("is_terminal", [False, True])
async def test_where_nobody_sees_them_on_a_terminal_workers_get_the_size_of_none(
    is_terminal: bool, tmp_path: Path
) -> None:
    settings = OutputSettings(tmp_path, redirects=Choice(Streams.BOTH if is_terminal else Streams.NONE))
    async with on_stage(settings, is_terminal=is_terminal) as stage:
        await stage.run(SCREEN, SCREEN)
    assert log_file(tmp_path, 0, "stdout") == b"- - -\n"
    stage.stderr.finish()


async def test_no_colours_for_who_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with on_stage(is_terminal=True) as stage:
        await stage.run('out("here\\n")', "")
    assert stage.stderr.finish() == b"[rank 0] here\n"


async def test_only_some_ranks_and_streams_are_shown_and_all_are_kept(tmp_path: Path) -> None:
    settings = OutputSettings(
        log_dir=tmp_path,
        redirects=Choice(Streams.NONE, {1: Streams.BOTH, 2: Streams.STDOUT}),
        tee=Choice(Streams.NONE, {1: Streams.STDERR}),
        terminal_ranks=frozenset({0, 1, 2}),
        stdout_filters=("loss",),
    )
    async with on_stage(settings) as stage:
        await stage.run(*['out(f"loss {rank}\\nmore\\n"); err(f"oops {rank}\\n")'] * 4)
        last = [await stage.output.end_of_stderr(local_rank) for local_rank in range(4)]
    shown = {rank: sorted(lines) for rank, lines in by_rank(stage.stderr.finish(), range(4)).items()}
    assert shown == {0: [b"loss 0", b"more", b"oops 0"], 1: [b"oops 1"], 2: [b"oops 2"], 3: []}
    for rank in range(4):
        assert log_file(tmp_path, rank, "stdout") == f"loss {rank}\nmore\n".encode()
        assert log_file(tmp_path, rank, "stderr") == f"oops {rank}\n".encode()
    filtered = (tmp_path / "job" / "run" / "round_1" / "filtered_stdout.log").read_bytes()
    assert sorted(filtered.splitlines()) == [f"[rank {rank}] loss {rank}".encode() for rank in range(3)]
    assert last == [b"oops %d\n" % rank for rank in range(4)]
