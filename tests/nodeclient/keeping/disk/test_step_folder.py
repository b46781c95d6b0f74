"""A step is whole on the disk or not there, and what is broken or hostile is refused in words."""

import errno
import json
import os
import zlib
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinatord.protocol.kept_state import SERIAL_MAX
from nodeclient.keeping.disk import durable_file, step_folder
from nodeclient.keeping.disk.durable_file import Progress, write_file
from nodeclient.keeping.disk.part_files import PartLostError, read_part, write_big, write_small
from nodeclient.keeping.disk.step_folder import Contents, Manifest, StepName, UnusableError, find_whole, read_manifest
from nodeclient.keeping.disk.tensor_file import TensorFileError, read_header
from nodeclient.keeping.parts import digests
from nodeclient.keeping.parts.arenas import DamagedPartError
from tests.support.kept_places import empty_place, held, sharded, small_bytes
from workerlib.contract.arena import Commit, Place

pytestmark = pytest.mark.slow

TENSORS = {"model.weight": torch.arange(14.0).reshape(7, 2), "model.bias": torch.arange(3, dtype=torch.bfloat16)}


def name(step: int = 4, run: str = "r-1") -> StepName:
    return StepName(run, 2, step, 2, 2)


def write(job: Path, of: StepName, ranks: tuple[int, ...] = (0, 1)) -> Path:
    folder = step_folder.begin(job, of)
    for rank in ranks:
        part = held(
            sharded(TENSORS, rank, 2),
            Commit(of.step, of.round, 0, rank, 2, rank, 2, 0),
            small_bytes({"model.mean": torch.ones(2)}, {"tokens": rank}),
        )
        write_big(folder, of, part, Progress())
        write_small(folder, of, part, Progress(), buffers=rank == 0)
    return folder


def persisted(job: Path, of: StepName | None = None) -> tuple[Path, Manifest]:
    of = of or name()
    return write(job, of), step_folder.commit(job, of, 0, Progress())


def read(job: Path, manifest: Manifest, rank: int, contents: Contents = Contents.SHARD) -> tuple[Place, Commit]:
    places: list[Place] = []

    def room(commit: Commit) -> Place:
        places.append(empty_place(commit.length))
        return places[0]

    part = manifest.find(contents, rank)
    assert part is not None
    commit = read_part(job / manifest.of.folder, replace(manifest.of, round=2), part, room, Progress())
    assert places[0].read() == commit
    return places[0], commit


@pytest.mark.parametrize("rank", [0, 1])
def test_a_part_comes_back_as_it_was(tmp_path: Path, rank: int) -> None:
    _, manifest = persisted(tmp_path)
    place, commit = read(tmp_path, manifest, rank)
    was = held(sharded(TENSORS, rank, 2), commit)
    assert bytes(place.data[: commit.length]) == bytes(was.place.data)
    assert (commit.step, commit.round, commit.rank, commit.shard, commit.shards) == (4, 2, rank, rank, 2)
    small, commit = read(tmp_path, manifest, rank, Contents.SMALL)
    assert bytes(small.data) == small_bytes({"model.mean": torch.ones(2)}, {"tokens": rank})


def test_a_manifest_that_names_no_attempt_is_read(tmp_path: Path) -> None:
    folder, _ = persisted(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["of"]["attempt"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert [found.of for found in find_whole(tmp_path)[0]] == [name()]


def test_progress_is_noted_with_each_file_when_a_step_is_made_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a file may take a busy file server a second, and a disk that hangs is known by no progress."""
    folder, progress, seen = write(tmp_path, name()), Progress(), list[tuple[str, int]]()
    files = sorted(path.name for path in folder.iterdir())

    def watch(call: str, what: str) -> None:
        real = getattr(os, call)

        def do(path: Any, *rest: Any, **named: Any) -> Any:
            seen.append((f"{what} {path if isinstance(path, int) else Path(path).name}", progress.bytes))
            return real(path, *rest, **named)

        monkeypatch.setattr(os, call, do)

    for call, what in (("open", "read"), ("stat", "look at"), ("lstat", "look at"), ("unlink", "delete")):
        watch(call, what)
    step_folder.commit(tmp_path, name(), 2, progress)
    monkeypatch.undo()
    notes = [file for file in files if file.endswith(step_folder.NOTE)]
    looks = [f"{what} {note}" for what in ("read", "delete") for note in notes]
    looks += [f"look at {file}" for file in files if file not in notes]
    at = [bytes_then for what, bytes_then in seen if what in looks]
    assert len(at) == len(looks) == 3 * len(notes)
    assert len(set(at)) == len(at), "nothing is noted between two files"


def test_a_step_is_not_there_before_its_manifest_is(tmp_path: Path) -> None:
    write(tmp_path, name(), ranks=(0,))
    assert find_whole(tmp_path) == ([], [])
    with pytest.raises(UnusableError, match=r"only 1 of 2 shards are found: is .* one directory for all nodes"):
        step_folder.commit(tmp_path, name(), 0, Progress())
    write(tmp_path, name(), ranks=(1,))
    with pytest.raises(UnusableError, match=r"only 2 of 3 ranks are found: is .* one directory for all nodes"):
        step_folder.commit(tmp_path, name(), 3, Progress())
    manifest = step_folder.commit(tmp_path, name(), 0, Progress())
    assert find_whole(tmp_path) == ([manifest], [])
    assert step_folder.commit(tmp_path, name(), 0, Progress()) == manifest, "the word of it may be lost"
    assert not list((tmp_path / name().folder).glob("*.note"))


def test_later_steps_have_higher_numbers_over_all_runs(tmp_path: Path) -> None:
    serials = [persisted(tmp_path, name(step, run))[1].serial for step, run in ((900, "r-1"), (8, "r-2"), (4, "r-3"))]
    assert serials == [1, 2, 3]
    assert [step.of.run for step in find_whole(tmp_path)[0]] == ["r-3", "r-2", "r-1"]


def test_steps_with_one_number_have_one_order_on_all_nodes(tmp_path: Path) -> None:
    """Two attempts that end at one moment may give it twice, and a directory may be listed in any order."""
    attempts = ("1", "2", "3")
    for order in permutations(attempts):
        job = tmp_path / "-".join(order)
        for attempt in order:
            persisted(job, StepName("r-1", 1, 4, 2, 2, attempt))
        for folder in job.iterdir():
            path = folder / "manifest.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "serial": 7}))
        found = step_folder.find_whole(job)[0]
        assert [manifest.of.attempt for manifest in found] == ["3", "2", "1"]


def test_only_what_is_named_is_dropped_whole_or_not(tmp_path: Path) -> None:
    for step in (4, 8, 12):
        persisted(tmp_path, name(step))
    for step in (10, 16):
        write(tmp_path, name(step), ranks=(0,))
    (tmp_path / "mine").mkdir()
    assert step_folder.unfinished(tmp_path, name(12), Progress()) == {name(10).folder, name(16).folder}
    step_folder.delete_steps(tmp_path, [name(4).folder, name(10).folder, "mine"])
    assert [step.of.step for step in find_whole(tmp_path)[0]] == [12, 8]
    assert {path.name for path in tmp_path.iterdir()} == {*(name(step).folder for step in (8, 12, 16)), "mine"}


def test_a_folder_that_cannot_be_read_or_deleted_is_in_the_way_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be that of another user, and after an error nobody knows whether a step is whole."""
    for step in (8, 12, 16):
        write(tmp_path, replace(name(step), attempt="1"))

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(path: Any, *args: Any, **kwargs: Any) -> Any:
            if str(path).startswith(str(tmp_path / "step-12-")):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return call(path, *args, **kwargs)

        return refuse

    for system_call in (os.stat, os.lstat, os.unlink):
        monkeypatch.setattr(os, system_call.__name__, refusing(system_call))
    folders = [replace(name(step), attempt="1").folder for step in (8, 12, 16)]
    assert step_folder.unfinished(tmp_path, name(20, run="r-2"), Progress()) == {folders[0], folders[2]}
    with pytest.raises(OSError, match="Stale file handle"):
        step_folder.delete_steps(tmp_path, folders[:2])
    step_folder.delete_attempts(tmp_path, "r-1", (1,), Progress())
    assert [path.name for path in tmp_path.iterdir()] == [folders[1]]


def test_no_job_has_a_folder_outside_its_directory_or_that_of_another(tmp_path: Path) -> None:
    jobs = ["..", ".", "a/b", "a%2Fb", "/", "ä" * 128, "ä" * 127 + "b", "a b"]
    folders = [step_folder.job_folder(tmp_path, job) for job in jobs]
    assert len({*folders}) == len(jobs)
    for folder in folders:
        folder.mkdir()
        assert folder.resolve().parent == tmp_path


@pytest.mark.parametrize("at", [0, 9, 40, -1])
def test_a_bit_that_flips_on_the_disk_is_found(tmp_path: Path, at: int) -> None:
    folder, manifest = persisted(tmp_path)
    path = folder / step_folder.file_name(Contents.SHARD, 0, 1)
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UnusableError, match="shard-00002"):
        read(tmp_path, manifest, 1)


def test_a_file_that_is_cut_off_or_missing_makes_its_step_useless_and_is_named(tmp_path: Path) -> None:
    for step in (4, 8, 12):
        persisted(tmp_path, name(step))
    os.truncate(tmp_path / name(12).folder / "small-00001.kept", 7)
    (tmp_path / name(8).folder / "buffers.safetensors").unlink()
    whole, problems = find_whole(tmp_path)
    assert [step.of.step for step in whole] == [4]
    assert "small-00001.kept has 7 bytes" in problems[0]
    assert "buffers.safetensors is missing" in problems[1]


def test_a_pipe_or_a_link_in_a_files_place_is_refused(tmp_path: Path) -> None:
    folder, manifest = persisted(tmp_path)
    path = folder / step_folder.file_name(Contents.SHARD, 0, 0)
    size = path.stat().st_size
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnusableError, match=f"{size:,} were written"):
        read_manifest(folder, Progress())
    with pytest.raises(OSError, match="symbolic links"):
        read(tmp_path, manifest, 0)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="no regular file"):
        read(tmp_path, manifest, 0)


def test_a_manifest_is_that_of_its_folder(tmp_path: Path) -> None:
    folder, _ = persisted(tmp_path)
    folder.rename(tmp_path / name(8).folder)
    [problem] = find_whole(tmp_path)[1]
    assert problem.endswith("its manifest is that of another step")


CHANGES: dict[str, Any] = {
    "a path as the name": lambda all_: all_["files"][0].update(name="../../etc/passwd"),
    "no such size": lambda all_: all_["files"][0].update(bytes=-1),
    "a size that no file has": lambda all_: all_["files"][0].update(bytes=2**52),
    "a rank that there is not": lambda all_: all_["files"][0].update(rank=2),
    "a file twice": lambda all_: all_["files"].append(all_["files"][0]),
    "a shard less": lambda all_: all_["files"].pop(1),
    "more shards": lambda all_: all_["of"].update(shards=1_000_000, world_size=1_000_000),
    "another format": lambda all_: all_.update(format=2),
    "a field that is not known": lambda all_: all_.update(more=1),
    "no files": lambda all_: all_.update(files=[]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_hostile_manifest_is_refused_in_words(tmp_path: Path, change: Any) -> None:
    folder, _ = persisted(tmp_path)
    content = json.loads((folder / "manifest.json").read_bytes())
    change(content)
    (folder / "manifest.json").write_text(json.dumps(content))
    whole, [problem] = find_whole(tmp_path)
    assert whole == []
    assert problem.startswith(f"{folder} is of no use: ")


@given(st.data())
def test_any_change_of_a_header_is_refused_or_gives_the_same_bytes(data: st.DataObject) -> None:
    shard = sharded(TENSORS, 0, 2)
    from nodeclient.keeping.disk.tensor_file import LENGTH_BYTES, describe  # noqa: PLC0415
    from workerlib.contract.manifest import read_layout  # noqa: PLC0415

    made = describe(read_layout(held(shard, Commit(4, 2, 0, 0, 2, 0, 2, 0)).place.data))
    text = bytearray(made.header[LENGTH_BYTES:])
    length = sum(span.length for span in made.spans)
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(32, 126))
    try:
        found = read_header(bytes(text), length)
    except TensorFileError:
        return
    assert sum(span.length for span in found.spans) == length
    assert all(span.in_memory + span.length <= found.layout.end for span in found.spans)
    assert found.layout.end <= len(found.layout.manifest) + length + 64 * len(found.spans)


def header(*pieces: object, **entries: object) -> bytes:
    return json.dumps({"__metadata__": {"coordinatord": json.dumps(pieces)}, **entries}).encode()


PIECE: list[Any] = ["a", "float32", [2], [0], [2], 8]
ENTRY: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
LONG = "a" * 1_000_000

HEADERS: dict[str, bytes] = {
    "a place that is no whole number": header(PIECE, a={**ENTRY, "data_offsets": [0.0, 8.0]}),
    "bytes of no elements": header(PIECE, ["b", "unknown", [5], [0], [0], 2**60], a=ENTRY),
    "a long name that is missing": header([LONG, *PIECE[1:]]),
    "a long name of two things": header([LONG, *PIECE[1:]], **{LONG: {**ENTRY, "dtype": "F16"}}),
    "a long dimension that is no number": header([*PIECE[:2], [LONG], [0], [2], 8]),
    "a name that a terminal obeys": header(["\x1b[2J", "float32", [2, 3], [0], [2], 8]),
}


@pytest.mark.parametrize("text", HEADERS.values(), ids=HEADERS)
def test_a_hostile_header_is_refused_in_a_few_printable_words(text: bytes) -> None:
    with pytest.raises(TensorFileError) as caught:
        read_header(text, 8)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_a_link_to_elsewhere_in_a_folders_place_is_neither_read_nor_written_nor_in_the_way(tmp_path: Path) -> None:
    job, elsewhere = tmp_path / "job", tmp_path / "elsewhere"
    folder, manifest = persisted(job)
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    files = sorted(elsewhere.iterdir())
    assert find_whole(job) == ([], [])
    with pytest.raises(UnusableError, match="is a symbolic link"):
        step_folder.begin(job, manifest.of)
    persisted(job, name(8))
    assert step_folder.unfinished(job, name(8), Progress()) == set()
    step_folder.delete_steps(job, [folder.name, name(8).folder])
    assert sorted(elsewhere.iterdir()) == files
    assert [path.name for path in job.iterdir()] == [folder.name]


def test_the_highest_number_that_somebody_wrote_is_said(tmp_path: Path) -> None:
    folder, _ = persisted(tmp_path)
    content = json.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_text(json.dumps({**content, "serial": SERIAL_MAX}))
    with pytest.raises(UnusableError, match="has the highest number that there can be, so none can follow: remove it"):
        persisted(tmp_path, name(8))


def test_a_part_that_is_overwritten_or_damaged_is_not_passed_off_as_written(tmp_path: Path) -> None:
    of, part = name(), held(sharded(TENSORS, 0, 2), Commit(4, 2, 0, 0, 2, 0, 2, 0))
    folder = step_folder.begin(tmp_path, of)
    part.place.store_digest(part.commit, 12345)
    with pytest.raises(DamagedPartError, match="rank 0 at step 4 is damaged"):
        write_big(folder, of, part, Progress())
    part.place.invalidate()
    with pytest.raises(PartLostError, match="overwritten"):
        write_big(folder, of, part, Progress())
    assert not list(folder.iterdir())


def test_bytes_that_are_checked_count_while_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checksum over a shard of 30 GB takes as long as a disk may hang."""
    of, part = name(), held(sharded(TENSORS, 0, 2), Commit(4, 2, 0, 0, 2, 0, 2, 0))
    folder, progress = step_folder.begin(tmp_path, of), Progress()
    seen: list[int] = []
    part.place.store_digest(part.commit, zlib.crc32(part.place.data[: part.commit.length]))
    monkeypatch.setattr(digests, "CHUNK_BYTES", 16)
    monkeypatch.setattr(progress, "add", seen.append)
    write_big(folder, of, part, progress)
    checked = -(-part.commit.length // 16)
    assert sum(seen[:checked]) == part.commit.length
    assert max(seen[:checked]) == 16


def test_bytes_count_as_written_when_they_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progress, seen = Progress(), []
    for call in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, call, lambda _: seen.append(progress.bytes))
    monkeypatch.setattr(durable_file, "FLUSH_BYTES", 2 * durable_file.CHUNK_BYTES)
    size = 5 * durable_file.CHUNK_BYTES
    write_file(tmp_path / "file", [bytes(size)], progress)
    assert seen == [0, size * 2 // 5, size * 4 // 5, size], "the last one is that of the folder"
    assert progress.bytes == size


def test_what_failed_attempts_have_left_hides_no_whole_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_folder, "FOLDERS_MAX", 100)
    persisted(tmp_path, name(step=9))
    for step in range(10_000, 10_000 + step_folder.FOLDERS_MAX):
        (tmp_path / name(step=step).folder).mkdir()
    assert [manifest.of.step for manifest in find_whole(tmp_path)[0]] == [9]
    left = step_folder.unfinished(tmp_path, name(step=9), Progress())
    assert len(left) == step_folder.FOLDERS_MAX
    step_folder.delete_steps(tmp_path, left)
    assert [folder.name for folder in tmp_path.iterdir()] == [name(step=9).folder]
