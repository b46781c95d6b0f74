"""State directories on the command line: which ones serve, and what `coordinatord state` shows."""

import json
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from coordinatord.config import subcommands
from coordinatord.config.serve_flags import ServeConfig
from coordinatord.config.state_flags import ReplayConfig, StateConfig
from coordinatord.config.subcommands import Config
from coordinatord.core.rounds.values.records import NodeDrained, NodeUndrained
from coordinatord.store.database import Database
from coordinatord.store.directory import DATABASE
from coordinatord.store.migrations import STEPS
from tests.support.disks import read_only_disk, small_disk
from tests.support.histories import a_join_of, a_loss_of, a_round_of, an_opening, made_at
from tests.support.programs import BIN, clean_environ, run

SERVE = (BIN / "coordinatord", "--host", "127.0.0.1", "--port", "0")

HOME = {"HOME": "/home/u"}


def parse(*arguments: str, **environ: str) -> Config:
    return subcommands.parse(arguments, environ)


def directory_of(*arguments: str, **environ: str) -> Path | None:
    found = parse(*arguments, **environ)
    if isinstance(found, StateConfig | ReplayConfig):
        return Path(str(found.source))
    assert isinstance(found, ServeConfig)
    return found.state_dir


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (HOME, "/home/u/.local/state/coordinatord"),
        (HOME | {"XDG_STATE_HOME": "/x"}, "/x/coordinatord"),
        (HOME | {"XDG_STATE_HOME": "relative"}, "/home/u/.local/state/coordinatord"),
        (HOME | {"XDG_STATE_HOME": ""}, "/home/u/.local/state/coordinatord"),
        (HOME | {"XDG_STATE_HOME": "/x", "STATE_DIRECTORY": "/var/lib/c"}, "/var/lib/c"),
        (HOME | {"STATE_DIRECTORY": "/var/lib/c:/var/lib/d"}, "/var/lib/c"),
        (HOME | {"STATE_DIRECTORY": "/var/lib/c", "COORDINATORD_STATE_DIR": "/s"}, "/s"),
    ],
)
def test_where_state_is_kept_if_nobody_says_so(
    environ: Mapping[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    for words in ("", "state", "replay"):
        assert directory_of(*words.split(), **environ) == Path(expected)
    for words in ("--state-dir /f", "state --state-dir /f", "--state-dir /f replay"):
        assert directory_of(*words.split(), **environ) == Path("/f")


def test_the_subcommands_have_flags_of_their_own() -> None:
    assert parse("state", "--json", "--state-dir", "/s") == StateConfig(Path("/s"), json=True)
    expected = ReplayConfig(Path("/s"), "mnist", None, step=True, json=False)
    assert parse("replay", "mnist", "--step", "--state-dir", "/s") == expected
    assert parse("--state-dir", "/t", "replay", "--state-dir", "/s") == ReplayConfig(
        Path("/s"), None, None, False, False
    )


# Which ones serve


def check_refusal(*argv: str | Path, code: int, words: str) -> None:
    """Check that a program ends with this code after one line with these words."""
    ended = run(*argv)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (code, "", 1), ended.stderr
    assert ended.stderr.startswith("coordinatord: state directory ")
    assert words in ended.stderr


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Return a state directory that holds the history of two jobs."""
    place = tmp_path / "stored"
    place.mkdir()
    database = Database.open(place / DATABASE)
    database.append(made_at(100.0, an_opening("mnist", nodes_max=2), a_join_of("a", "mnist"), a_join_of("b", "mnist")))
    database.append(made_at(101.5, a_round_of("a", "b", job="mnist")))
    database.append(made_at(103.0, a_loss_of("b", "mnist")))
    database.append(made_at(104.0, an_opening("gpt", "e-2")))
    database.append(
        made_at(105.0, *(NodeDrained("", "", f"{name} drained by alice", name) for name in ("gpu1", "gpu2")))
    )
    database.append(made_at(106.0, NodeUndrained("", "", "gpu2 undrained by alice", "gpu2")))
    database.close()
    return place


@pytest.mark.slow
def test_a_read_only_directory_is_refused_at_start_and_can_be_looked_at(stored: Path) -> None:
    disk = read_only_disk(stored)
    check_refusal(*disk, *SERVE, "--state-dir", stored, code=74, words="it is read-only: make it writable")
    shown = run(*disk, BIN / "coordinatord", "state", "--state-dir", stored)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "job mnist" in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize("size_kib", [4, 16, 32, 48])
def test_a_full_disk_is_refused_at_start(tmp_path: Path, size_kib: int) -> None:
    place = tmp_path / "disk"
    disk = small_disk(place, size_kib)
    check_refusal(*disk, *SERVE, "--state-dir", place / "state", code=74, words="the disk is full: make room there")


@pytest.mark.slow
@pytest.mark.parametrize("command", [SERVE, (BIN / "coordinatord", "state"), (BIN / "coordinatord", "replay")])
def test_what_is_damaged_or_newer_is_refused_for_good(stored: Path, command: tuple[str | Path, ...]) -> None:
    with closing(sqlite3.connect(stored / DATABASE)) as connection:
        connection.execute("PRAGMA user_version = 99")
    check_refusal(*command, "--state-dir", stored, code=65, words="written by a newer coordinatord")
    (stored / DATABASE).write_bytes(b"damaged" * 1000)
    check_refusal(*command, "--state-dir", stored, code=65, words="its database is damaged: restore it")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["state", "replay"])
def test_where_nothing_is_kept_nothing_is_shown_or_made(tmp_path: Path, command: str) -> None:
    check_refusal(
        BIN / "coordinatord", command, "--state-dir", tmp_path / "x", code=66, words="there is no such directory"
    )
    check_refusal(
        BIN / "coordinatord", command, "--state-dir", tmp_path, code=66, words="no coordinatord has kept state in it"
    )
    assert list(tmp_path.iterdir()) == []


# What is shown


def state(place: Path, *arguments: str) -> str:
    ended = run(BIN / "coordinatord", "state", "--state-dir", place, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.mark.slow
def test_state_shows_each_job_and_the_ranks_of_its_nodes(stored: Path) -> None:
    path, facts, *rest = state(stored).splitlines()
    assert path == str(stored)
    assert facts.startswith(f"schema version {len(STEPS)}, 9 records, ")
    assert rest == [
        "",
        "job mnist  starting: formed of 2",
        "run e-1, round 1, restarts 0 of 3, last changed 1970-01-01 00:01:43.000Z",
        "  a  host host-a, rank 0",
        "  b  gone, no ranks",
        "",
        "job gpt  forming: the first node came",
        "run e-2, round 0, restarts 0 of 3, last changed 1970-01-01 00:01:44.000Z",
        "  no nodes",
        "",
        "drained",
        "  gpu1 drained by alice",
    ]


@pytest.mark.slow
def test_state_for_programs_says_the_same(stored: Path) -> None:
    shown = json.loads(state(stored, "--json"))
    assert shown["bytes"] == (stored / DATABASE).stat().st_size
    assert (shown["state_dir"], shown["version"], shown["records"]) == (str(stored), len(STEPS), 9)
    mnist, gpt = shown["jobs"]
    assert mnist == {
        "job": "mnist",
        "run": "e-1",
        "state": "starting",
        "reason": "formed of 2",
        "round": 1,
        "restarts": {"used": 0, "max": 3, "window_s": None},
        "nodes": [
            {"node": "a", "host": "host-a", "group_rank": 0, "ranks": [0]},
            {"node": "b", "host": None, "group_rank": None, "ranks": []},
        ],
        "changed_at": 103.0,
    }
    assert (gpt["run"], gpt["nodes"]) == ("e-2", [])
    assert shown["drained"] == [{"node": "gpu1", "reason": "gpu1 drained by alice"}]


@pytest.mark.slow
def test_a_terminal_without_the_letters_of_a_name_is_shown_their_numbers(tmp_path: Path) -> None:
    place = tmp_path / "\udcff"
    place.mkdir()
    database = Database.open(place / DATABASE)
    database.append(made_at(0.0, an_opening("größe")))
    database.close()
    ended = run(BIN / "coordinatord", "state", "--state-dir", place, environ=clean_environ(PYTHONIOENCODING="ascii"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "job gr\\xf6\\xdfe  forming" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", ["state", "replay"])
def test_output_that_cannot_be_written_is_one_line(command: str, stored: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [BIN / "coordinatord", command, "--state-dir", stored],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr.count("\n")) == (74, 1), ended.stderr
    assert "the output cannot be written: No space left on device" in ended.stderr
