"""Names of jobs and runs become names of directories that stay where they belong."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.protocol.log_messages import stderr_log
from nodeclient.output.log_paths import NAME_BYTES_MAX, LogPaths, PrivateFolder, quoted


def test_the_coordinator_knows_where_a_node_has_a_worker_s_stderr() -> None:
    log = LogPaths("mnist", "r1", 12).folder(Path("/logs")) / "3" / "stderr.log"
    assert stderr_log(f"/logs/{quoted('mnist')}", "r1", 12, 3) == str(log)
    assert stderr_log("", "r1", 12, 3) == stderr_log("/l" * 512, "r1", 12, 3) == ""


@pytest.mark.parametrize(
    ("name", "folder"),
    [("..", "%2E."), (".", "%2E"), ("a/b", "a%2Fb"), ("../../etc", "%2E.%2F..%2Fetc"), ("50%", "50%25"), ("é", "é")],
)
def test_no_name_leaves_the_directory(name: str, folder: str) -> None:
    assert quoted(name) == folder


@given(st.text(min_size=1, max_size=128), st.text(min_size=1, max_size=128))
def test_different_names_have_different_directories(one: str, other: str) -> None:
    assert (quoted(one) == quoted(other)) == (one == other)
    assert len(quoted(one).encode()) <= NAME_BYTES_MAX
    assert Path("/logs", quoted(one)).parts == ("/", "logs", quoted(one))


def test_a_private_folder_is_private_empty_and_removed() -> None:
    folder = PrivateFolder()
    for _ in range(2):
        folder.empty()
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        assert list(folder.path.iterdir()) == []
        (folder.path / "0.json").touch()
        (folder.path / "of a worker").mkdir()
    folder.remove()
    assert not folder.path.exists()
    folder.empty()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    folder.remove()
    folder.remove()
    assert not folder.path.exists()


def test_a_private_folder_is_its_owner_s_whatever_the_umask_and_where_groups_are_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o2777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = PrivateFolder()
    before = os.umask(0o777)
    try:
        for _ in range(2):
            folder.empty()
    finally:
        os.umask(before)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("in_its_place", ["a link", "a directory for all", "a file", "a directory like ours"])
def test_what_somebody_has_put_in_place_of_a_private_folder_is_not_touched(
    in_its_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = tmp_path / "other"
    other.mkdir()
    folder = PrivateFolder()
    match in_its_place:
        case "a link":
            folder.path.symlink_to(other)
        case "a file":
            folder.path.touch()
        case "a directory like ours":
            folder.empty()
            folder.path.rename(tmp_path / "moved away")
            folder.path.mkdir(0o700)
            other = folder.path
        case _:
            folder.path.mkdir()
            folder.path.chmod(0o777)
    (other / "thesis.txt").touch()
    with pytest.raises(PermissionError, match="is not the private directory that was made there"):
        folder.empty()
    assert [left.name for left in other.iterdir()] == ["thesis.txt"]
