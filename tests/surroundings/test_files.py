"""Directories and disks as labs have them: inherited groups, odd umasks, nothing to write to, no room."""

import sys
from pathlib import Path

import pytest

from tests.support.cluster import Coordinator
from tests.support.disks import read_only_disk, small_disk
from tests.support.namespaces import apart, as_user
from tests.support.programs import BIN
from tests.surroundings.support import NOBODY, join, sh, went

pytestmark = pytest.mark.slow

FAILS_FIRST = ("sh", "-c", "exec [ $COORDINATORD_ROUND = 2 ]")
"""Workers that end with 1 in the first round."""


@pytest.mark.parametrize("umask", ["0777", "0000"])
def test_temporary_files_may_lie_in_a_setgid_directory_under_any_umask(
    coordinator: Coordinator, tmp_path: Path, umask: str
) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    folder.chmod(0o3777)
    tmp_path.chmod(0o755)
    node = sh([f"umask {umask}"], *as_user(NOBODY), *join(coordinator, "--max-restarts", "1"))
    went(*node, *FAILS_FIRST, environ={"TMPDIR": str(folder)})
    assert list(folder.iterdir()) == []


def test_the_directory_for_temporary_files_may_be_missing(coordinator: Coordinator) -> None:
    went(*join(coordinator, "--max-restarts", "1"), *FAILS_FIRST, environ={"TMPDIR": "/no/such/directory"})


def test_the_directory_for_temporary_files_may_be_removed_between_rounds(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    script = 'rm -r "$TMPDIR"; exec [ $COORDINATORD_ROUND = 2 ]'
    went(*join(coordinator, "--max-restarts", "1"), "sh", "-c", script, environ={"TMPDIR": str(folder)})


def test_a_directory_for_temporary_files_that_cannot_be_made_anew_is_named(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    script = 'rm -r "$TMPDIR" && touch "$TMPDIR"; exit 1'
    node = join(coordinator, "--max-restarts", "1")
    ended = went(*node, "sh", "-c", script, environ={"TMPDIR": str(folder)}, code=71)
    assert f"the system refused a resource of the workers: {folder}/nodeclient-" in ended.stderr


def test_the_directory_for_temporary_files_may_be_full(coordinator: Coordinator, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    full = sh([f"head -c 99999 /dev/zero > {disk}/ballast 2>&- || true"], *join(coordinator, "--max-restarts", "1"))
    went(*small_disk(disk, 4), *full, *FAILS_FIRST, environ={"TMPDIR": str(disk)})


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_below_the_output_stops_no_training(coordinator: Coordinator, tmp_path: Path, workers: int) -> None:
    disk = tmp_path / "disk"
    prints = "import sys\nfor _ in range(3): print('x' * 3000, flush=True)\nsys.stderr.write('trained\\n')"
    node = join(coordinator, "--nproc-per-node", str(workers))
    into = f'head -c 99999 /dev/zero > {disk}/ballast 2>&- || true; exec "$@" > {disk}/out'
    ended = went(*small_disk(disk, 4), "sh", "-c", into, "sh", *node, sys.executable, "-S", "-E", "-c", prints)
    assert ended.stderr.count("trained") == workers
    assert f"output is lost, since {disk}/out cannot be written: No space left on device" in ended.stderr


def test_the_home_may_be_missing_or_read_only(coordinator: Coordinator, tmp_path: Path) -> None:
    home = tmp_path / "home"
    node = (*as_user(NOBODY), *join(coordinator))
    went(*read_only_disk(home), *node, "sh", "-c", "! touch ~/file 2>&-", environ={"HOME": str(home)})
    went(*sh(["unset HOME"], *node), "true")


@pytest.mark.parametrize("flags", [(), ("--preload", "decimal")], ids=["cold", "warm"])
def test_modules_and_variables_for_python_are_for_the_workers_only(tmp_path: Path, flags: tuple[str, ...]) -> None:
    names = [f"{place}{name}" for name in ("secrets", "token", "queue", "logging") for place in ("", "by_variable/")]
    for name in (*names, "coordinatord/__init__", "aiohttp/__init__"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text("ours = True")
    (tmp_path / "train.py").write_text("import aiohttp, secrets\nprint(aiohttp.ours, secrets.ours)")
    node = (str(BIN / "nodeclient"), "join", "--standalone", *flags, "--", sys.executable, "train.py")
    variables = {"PYTHONPATH": str(tmp_path / "by_variable"), "COORDINATORD_CONFIG": "/dev/null/none"}
    for environ in ({}, variables):
        ended = went("env", "--chdir", str(tmp_path), *node, environ=environ)
        assert ended.stdout == "True True\n"
        assert "cold" not in ended.stderr
    went("env", "--chdir", str(tmp_path), *node, environ={"PYTHONIOENCODING": "utf-16"})


def test_the_working_directory_may_have_been_removed(coordinator: Coordinator, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    went(*sh([f"cd {gone}", f"rmdir {gone}"], *join(coordinator)), "true")


def test_there_may_be_no_shared_memory_and_nothing_of_the_kernel_to_be_read() -> None:
    bare = apart(
        "--mount", setup="for place in /dev/shm /proc/sys /sys; do mount -t tmpfs -o size=4k,ro none $place; done"
    )
    flags = ("--nproc-per-node", "2", "--max-restarts", "1")
    went(*bare, str(BIN / "nodeclient"), "join", "--standalone", *flags, "--", *FAILS_FIRST)
