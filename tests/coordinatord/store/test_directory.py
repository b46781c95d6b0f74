"""A state directory is made, taken by one daemon at a time, and refused with a reason where it is of no use."""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from coordinatord.runtime.boot import boot_id
from coordinatord.store.database import Database
from coordinatord.store.directory import DATABASE, StateDirectory
from coordinatord.store.interface import NothingStoredError, StoreError, UnreadableStoreError
from tests.support.histories import an_opening, made_at, set_clock_since

NOBODY = 65_534


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_a_missing_directory_is_made_for_this_user_alone(tmp_path: Path) -> None:
    directory = StateDirectory.claim(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    directory.close()


def test_a_question_whether_the_directory_is_claimed_does_not_keep_a_daemon_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def lock_amid_question(lock: int, operation: int) -> None:
        """Try the lock at the moment at which `is_claimed` of another process has its share."""
        monkeypatch.setattr(fcntl, "flock", flock)
        with (tmp_path / "lock").open() as asked:
            flock(asked, fcntl.LOCK_SH)
            flock(lock, operation)

    monkeypatch.setattr(fcntl, "flock", lock_amid_question)
    StateDirectory.claim(tmp_path).close()


def test_the_number_of_a_longer_one_is_not_left_behind(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("123456789012345\n")
    directory = StateDirectory.claim(tmp_path)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    directory.close()


@pytest.mark.parametrize("set_by_s", [900 * 86_400.0, -3_600.0])
def test_a_clock_that_was_set_between_two_lives_is_noticed(tmp_path: Path, set_by_s: float) -> None:
    directory = StateDirectory.claim(tmp_path)
    directory.record_clock()
    directory.close()
    set_clock_since(tmp_path, set_by_s)
    StateDirectory.claim(tmp_path).close()  # a command notes nothing, and leaves the note as it is
    again = StateDirectory.claim(tmp_path)
    assert again.clock_set_by_s == pytest.approx(set_by_s, abs=60.0)
    again.record_clock()
    again.close()
    last = StateDirectory.claim(tmp_path)
    assert last.clock_set_by_s == 0.0
    last.close()


@pytest.mark.parametrize(
    "lock", ["123\nanother-boot 1.5", "123\n 1.5", "123\nword", f"123\n{boot_id()} 1.2.3", "", "123"]
)
def test_a_note_of_another_boot_or_none_says_nothing_of_the_clock(tmp_path: Path, lock: str) -> None:
    (tmp_path / "lock").write_text(lock)
    directory = StateDirectory.claim(tmp_path)
    assert directory.clock_set_by_s == 0.0
    directory.close()


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_is_no_directory(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="it is no directory: choose another with --state-dir"):
        StateDirectory.claim(tmp_path / "file" / below)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Give up what root may do. Skips the test for another user."""
    if os.geteuid() != 0:
        pytest.skip("to become another user needs root")
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def foreign() -> Iterator[Path]:
    """Yield a state directory of root in a place that everybody may enter, as pytest's own are not."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        directory = Path(place, "foreign")
        directory.mkdir()
        with closing(Database.open(directory / DATABASE)) as database:
            database.append(made_at(0.0, an_opening()))
        yield directory


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_directory_of_another_user_may_not_be_used(foreign: Path, mode: int) -> None:
    foreign.chmod(mode)
    with as_nobody(), pytest.raises(StoreError, match="this user may not use it: change its owner or mode"):
        StateDirectory.claim(foreign)


def test_a_database_that_may_not_be_written_is_found_out_at_once(foreign: Path) -> None:
    foreign.chmod(0o777)
    with as_nobody(), pytest.raises(StoreError, match="this user may not use it: change its owner or mode"):
        Database.open(foreign / DATABASE)


def test_a_database_that_may_only_be_read_can_be_read(foreign: Path) -> None:
    foreign.chmod(0o755)
    for file in foreign.iterdir():
        file.chmod(0o644)
    with as_nobody():
        assert Database.copy_of(foreign / DATABASE).count() == 1


@pytest.mark.parametrize("content", [b"no database at all" * 400, bytes(range(256)) * 64])
def test_a_file_that_is_no_database_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / DATABASE).write_bytes(content)
    for attempt in (Database.open, Database.copy_of):
        with pytest.raises(UnreadableStoreError, match="its database is damaged: restore it from a copy"):
            attempt(tmp_path / DATABASE)
    assert (tmp_path / DATABASE).read_bytes() == content


def open_and_check(path: Path) -> None:
    """Do what a start of the daemon does, one thing after the other."""
    with closing(Database.open(path)) as database:
        database.check()


@pytest.mark.parametrize("page", [1, 2, 3, None])
def test_a_database_with_a_damaged_page_or_cut_short_is_found_at_once(tmp_path: Path, page: int | None) -> None:
    path = tmp_path / DATABASE
    with closing(Database.open(path)) as database:
        database.append(made_at(0.0, *(an_opening(f"job-{number}") for number in range(100))))
    content = bytearray(path.read_bytes())
    if page is None:
        del content[len(content) // 2 :]
    else:
        content[page * 4096 : page * 4096 + 200] = b"\xa5" * 200
    path.write_bytes(content)
    for attempt in (open_and_check, Database.copy_of):
        with pytest.raises(UnreadableStoreError, match="its database is damaged"):
            attempt(path)


def test_to_read_needs_something_to_be_there_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NothingStoredError, match="there is no such directory"):
        Database.copy_of(tmp_path / "nosuch" / DATABASE)
    with pytest.raises(NothingStoredError, match="no coordinatord has kept state in it"):
        Database.copy_of(tmp_path / DATABASE)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("left", [(), ("-wal",), ("-wal", "-shm")], ids=["closed", "log alone", "killed"])
def test_to_read_what_nobody_has_open_adds_no_file_and_changes_no_record(tmp_path: Path, left: tuple[str, ...]) -> None:
    """A daemon that was killed leaves all three files; a copy of its directory may lack the third."""
    original, place = tmp_path / "original", tmp_path / "copied"
    original.mkdir()
    place.mkdir()
    database = Database.open(original / DATABASE)
    database.append(made_at(0.0, an_opening()))
    if not left:
        database.close()
    files = [DATABASE, *(f"{DATABASE}{suffix}" for suffix in left)]
    for name in files:
        (place / name).write_bytes((original / name).read_bytes())
    kept = {name: (place / name).read_bytes() for name in files if not name.endswith("-shm")}
    assert Database.copy_of(place / DATABASE).count() == 1
    assert names(place) == set(files)
    assert {name: (place / name).read_bytes() for name in kept} == kept


def test_a_path_of_odd_characters_is_a_path(tmp_path: Path) -> None:
    place = tmp_path / "a b?mode=memory#%41\udcff"
    directory = StateDirectory.claim(place)
    Database.open(directory.database).close()
    assert Database.copy_of(directory.database).count() == 0
    assert names(place) == {"lock", DATABASE}
    directory.close()


def test_a_directory_that_is_removed_or_replaced_meanwhile_is_noticed(tmp_path: Path) -> None:
    place = tmp_path / "state"
    directory = StateDirectory.claim(place)
    Database.open(directory.database).close()
    directory.check()
    place.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="its lock is gone: put it back"):
        directory.check()
    other = StateDirectory.claim(place)
    Database.open(other.database).close()
    with pytest.raises(StoreError, match="another one is in its place: put ours back"):
        directory.check()
    other.check()
    other.close()
    directory.close()


def test_what_is_kept_is_for_this_user_alone_and_no_link_is_followed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    directory = StateDirectory.claim(tmp_path)
    Database.open(directory.database).close()
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    directory.close()
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(StoreError):
        StateDirectory.claim(tmp_path)
    assert (tmp_path / "victim").read_text() == "precious"
