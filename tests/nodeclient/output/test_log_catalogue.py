"""The rounds on the disk are found again, and deleted without touching anything that is not ours."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
from msgspec import structs

from nodeclient.core.logged_rounds import LoggedRound
from nodeclient.output.log_catalogue import LogCatalogue

ROUND = LoggedRound("host", "my/job", "a", "e-1", 1, 0, 2, 1_000.0)


@pytest.fixture
def catalogue(tmp_path: Path) -> LogCatalogue:
    return LogCatalogue(tmp_path, "my/job", "host")


def folder_of(catalogue: LogCatalogue, kept: LoggedRound, tmp_path: Path) -> Path:
    return tmp_path.joinpath(*catalogue.parts(kept))


def fill(catalogue: LogCatalogue, kept: LoggedRound, tmp_path: Path) -> Path:
    """Write a round's note and log files; return its directory."""
    catalogue.begin(kept)
    folder = folder_of(catalogue, kept, tmp_path)
    for rank in kept.ranks:
        (folder / str(rank)).mkdir()
        for name in ("stdout.log", "stderr.log", "stderr.log.1"):
            (folder / str(rank) / name).write_text("x")
    (folder / "filtered_stderr.log").write_text("x")
    return folder


def test_what_was_noted_is_found_by_a_later_process(catalogue: LogCatalogue, tmp_path: Path) -> None:
    later = structs.replace(ROUND, run="e-2", round=7, node="b")
    catalogue.begin(ROUND)
    catalogue.begin(later)
    catalogue.write(later, create=True)
    failed = structs.replace(ROUND, failed=True)
    catalogue.write(failed, create=False)
    catalogue.write(structs.replace(ROUND, round=9), create=False)
    again = LogCatalogue(tmp_path, "my/job", "host")
    assert sorted(again.scan(), key=lambda kept: kept.run) == [failed, later]
    assert LogCatalogue(tmp_path, "my/job", "other-host").scan() == [], "several hosts may share the directory"
    assert LogCatalogue(tmp_path, "other", "host").scan() == []


def test_a_round_in_which_the_process_was_killed_has_failed(catalogue: LogCatalogue, tmp_path: Path) -> None:
    catalogue.begin(ROUND)
    later = LogCatalogue(tmp_path, "my/job", "host")
    assert later.scan() == [ROUND], "while it holds the lock, it goes on"
    catalogue.release()
    assert later.scan() == [structs.replace(ROUND, failed=True)]
    catalogue.write(ROUND, create=True)
    assert later.scan() == [ROUND]


def test_a_note_is_locked_before_another_process_sees_it(
    catalogue: LogCatalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = LogCatalogue(tmp_path, "my/job", "host")
    seen: list[LoggedRound] = []
    with monkeypatch.context() as slow:

        def lock(fd: int, flags: int) -> None:
            slow.undo()
            seen.extend(later.scan())
            fcntl.flock(fd, flags)

        slow.setattr(fcntl, "flock", lock)
        catalogue.begin(ROUND)
    assert seen == []
    assert later.scan() == [ROUND]
    assert not later.delete(ROUND)


def test_the_note_of_a_round_that_began_on_a_full_disk_is_written_at_its_end(
    catalogue: LogCatalogue, tmp_path: Path
) -> None:
    catalogue.begin(ROUND)
    [note] = folder_of(catalogue, ROUND, tmp_path).iterdir()
    note.write_text("")
    catalogue.write(ROUND, create=True)
    assert catalogue.scan() == [ROUND]
    note.unlink()
    catalogue.write(ROUND, create=True)
    assert catalogue.scan() == [ROUND]
    note.unlink()
    note.parent.rmdir()
    catalogue.write(ROUND, create=True)
    assert not note.parent.exists(), "nothing was written there"


def test_a_pipe_in_the_place_of_a_note_is_no_note(catalogue: LogCatalogue, tmp_path: Path) -> None:
    catalogue.begin(ROUND)
    catalogue.release()
    [note] = folder_of(catalogue, ROUND, tmp_path).iterdir()
    note.unlink()
    os.mkfifo(note)
    with pytest.raises(OSError, match="No such device or address"):
        catalogue.write(ROUND, create=True)
    assert catalogue.scan() == []


def test_a_round_whose_note_a_full_disk_left_empty_is_deleted_later(catalogue: LogCatalogue, tmp_path: Path) -> None:
    other = structs.replace(ROUND, node="b", first_rank=2, workers=1)
    folder = fill(catalogue, ROUND, tmp_path)
    (folder / "2").mkdir()
    (folder / "2" / "stdout.log").write_text("x")
    catalogue.begin(other)
    catalogue.write(other, create=True)
    (folder / ".nodeclient-a.json").write_text("")
    later = LogCatalogue(tmp_path, "my/job", "host")
    [lost] = [kept for kept in later.scan() if kept.node == "a"]
    assert structs.replace(lost, begun_at=ROUND.begun_at) == ROUND
    assert later.delete(lost)
    assert sorted(path.name for path in folder.iterdir()) == [".nodeclient-b.json", "2", "filtered_stderr.log"]


def test_two_notes_that_a_full_disk_left_empty_never_name_the_same_files(
    catalogue: LogCatalogue, tmp_path: Path
) -> None:
    other = structs.replace(ROUND, node="b", first_rank=2)
    fill(catalogue, ROUND, tmp_path)
    live = LogCatalogue(tmp_path, "my/job", "host")
    folder = fill(live, other, tmp_path)
    catalogue.release()
    for name in ("a", "b"):
        (folder / f".nodeclient-{name}.json").write_text("")
    later = LogCatalogue(tmp_path, "my/job", "host")
    assert later.scan() == [], "which ranks belong to the node that lives is not known"
    live.release()
    first, second = sorted(later.scan(), key=lambda kept: kept.node)
    assert ({*first.ranks}, {*second.ranks}) == ({0, 1, 2, 3}, set()), "nothing tells them apart"
    assert later.delete(second)
    assert {"0", "1", "2", "3"} <= {path.name for path in folder.iterdir()}
    assert later.delete(first)
    assert not folder.exists()


def test_a_note_that_cannot_be_written_is_locked_all_the_same(
    catalogue: LogCatalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:

        def fail(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        full.setattr(os, "pwrite", fail)
        with pytest.raises(OSError, match="No space left"):
            catalogue.begin(ROUND)
    later = LogCatalogue(tmp_path, "my/job", "host")
    assert later.scan() == [], "its process lives"
    assert not later.delete(ROUND)
    catalogue.write(ROUND, create=True)
    assert later.scan() == [ROUND]


@pytest.mark.parametrize("text", ["{", "[1]", '{"host": 1}', "[" * 5_000, "\xff"])
@pytest.mark.usefixtures("collects_nothing")
def test_a_note_that_says_nothing_is_no_round(catalogue: LogCatalogue, tmp_path: Path, text: str) -> None:
    catalogue.begin(ROUND)
    [note] = folder_of(catalogue, ROUND, tmp_path).iterdir()
    note.write_text(text, encoding="latin-1")
    assert catalogue.scan() == []


def test_a_note_of_another_place_is_not_believed(catalogue: LogCatalogue, tmp_path: Path) -> None:
    catalogue.begin(ROUND)
    [note] = folder_of(catalogue, ROUND, tmp_path).iterdir()
    elsewhere = folder_of(catalogue, structs.replace(ROUND, round=2), tmp_path)
    elsewhere.mkdir()
    note.rename(elsewhere / note.name)
    assert catalogue.scan() == []


def test_a_round_is_deleted_with_its_directories(catalogue: LogCatalogue, tmp_path: Path) -> None:
    fill(catalogue, ROUND, tmp_path)
    catalogue.release()
    assert catalogue.delete(ROUND)
    assert list((tmp_path / "my%2Fjob").iterdir()) == []
    assert catalogue.delete(ROUND), "it is gone already"


def test_what_others_have_put_there_stays(catalogue: LogCatalogue, tmp_path: Path) -> None:
    other = structs.replace(ROUND, node="b", first_rank=2, workers=1)
    fill(catalogue, ROUND, tmp_path)
    folder = folder_of(catalogue, ROUND, tmp_path)
    (folder / "0" / "checkpoint.pt").write_text("x")
    (folder / "1" / "stdout.log").unlink()
    (folder / "1" / "stdout.log").mkdir()
    (folder / "2").mkdir()
    (folder / "2" / "stdout.log").write_text("x")
    catalogue.begin(other)
    (folder / "1" / "stdout.log").rmdir()
    assert catalogue.delete(ROUND)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left == {"0/checkpoint.pt", "2/stdout.log", "filtered_stderr.log", ".nodeclient-b.json"}


def test_links_in_the_place_of_our_directories_lead_to_no_deletion(catalogue: LogCatalogue, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "stdout.log").write_text("x")
    catalogue.begin(ROUND)
    catalogue.release()
    folder = folder_of(catalogue, ROUND, tmp_path)
    (folder / "0").symlink_to(precious)
    assert catalogue.delete(ROUND)
    assert (precious / "stdout.log").exists()
    assert (folder / "0").readlink() == precious


def test_a_round_that_is_being_written_is_left_alone(catalogue: LogCatalogue, tmp_path: Path) -> None:
    fill(catalogue, ROUND, tmp_path)
    other_process = LogCatalogue(tmp_path, "my/job", "host")
    assert not other_process.delete(ROUND)
    catalogue.begin(structs.replace(ROUND, round=2))
    assert other_process.delete(ROUND)
