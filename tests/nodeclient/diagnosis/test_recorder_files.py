"""Files of torch's flight recorder name the ranks that all others waited for, whatever else lies beside them."""

import json
import os
import pickle  # noqa: TID251 - to write what is read as plain data
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinatord.hints.hang_verdict import find_hang
from coordinatord.protocol.messages import HangKind
from nodeclient.diagnosis import recorder_files
from nodeclient.diagnosis.recorder_files import UnreadableDumpError, dumps_in, samples_in
from tests.support.condensed_dumps import dumps_of

Write = Callable[[Any], bytes]

PICKLED: list[Write] = [partial(pickle.dumps, protocol=protocol) for protocol in (2, 4, 5)]


def as_json(dump: Any) -> bytes:
    return json.dumps(dump).encode()


@pytest.mark.parametrize(
    ("hang", "kind", "guilty"),
    [("gpu_error_1st", HangKind.MISMATCHED, (12, 14)), ("lock_gil_2nd", HangKind.ABSENT, (10, 15))],
)
@pytest.mark.parametrize(("prefix", "write"), [("_dump_", PICKLED[0]), ("nccl_trace_rank_", PICKLED[1]), ("", as_json)])
def test_exactly_the_ranks_with_the_fault_of_a_real_hang_are_named(
    tmp_path: Path, hang: str, kind: HangKind, guilty: tuple[int, ...], prefix: str, write: Write
) -> None:
    for rank, dump in dumps_of(Path(__file__).with_name(f"{hang}.json")).items():
        (tmp_path / f"{prefix}{rank}{'' if prefix else '.json'}").write_bytes(write(dump))
    (tmp_path / "guilty.txt").write_text("no file of a rank")
    dumps, problems = dumps_in(tmp_path)
    found = find_hang(samples_in(dumps))
    assert found is not None
    assert (found.kind, found.ranks, problems) == (kind, guilty, [])


def a_dump(*entries: dict[str, Any], ranks: str = "[0, 1]") -> dict[str, Any]:
    """Return the dump of a rank of a job."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {"version": "2.10", "pg_config": config, "entries": list(entries)}


WAITS = {
    "process_group": ("0", "default_pg"),
    "is_p2p": False,
    "retired": False,
    "state": "scheduled",
    "collective_seq_id": 7,
    "p2p_seq_id": 0,
    "profiling_name": "nccl:all_reduce",
    "time_created_ns": 10**18,
    "input_sizes": [[8]],
    "input_dtypes": ["Float"],
}


@pytest.mark.parametrize("write", [as_json, *PICKLED])
def test_a_rank_without_a_file_does_not_answer_if_others_know_of_it(tmp_path: Path, write: Write) -> None:
    (tmp_path / "_dump_0").write_bytes(write(a_dump(WAITS)))
    found = find_hang(samples_in(dumps_in(tmp_path)[0]))
    assert found is not None
    assert (found.kind, found.sentence) == (HangKind.ABSENT, "rank 1 does not answer; rank 0 waits in all_reduce 7")


def test_a_rank_whose_collectives_are_all_over_stands(tmp_path: Path) -> None:
    (tmp_path / "_dump_0").write_bytes(as_json(a_dump(WAITS)))
    (tmp_path / "_dump_1").write_bytes(as_json(a_dump({**WAITS, "collective_seq_id": 6, "state": "completed"})))
    found = find_hang(samples_in(dumps_in(tmp_path)[0]))
    assert found is not None
    assert (found.kind, found.ranks) == (HangKind.STUCK, (1,))


def test_a_rank_without_a_file_is_named_though_another_one_stands(tmp_path: Path) -> None:
    (tmp_path / "_dump_0").write_bytes(as_json(a_dump(WAITS, ranks="[0, 1, 2]")))
    behind = {**WAITS, "collective_seq_id": 6, "state": "completed"}
    (tmp_path / "_dump_1").write_bytes(as_json(a_dump(behind, ranks="[0, 1, 2]")))
    found = find_hang(samples_in(dumps_in(tmp_path)[0]))
    assert found is not None
    assert found.ranks == (1,), "whose place is known"
    assert found.sentence == "rank 1 stands still; rank 0 waits in all_reduce 7; rank 2 does not answer"


class Hostile:
    """It runs a command when a pickle of it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the call that is made."""
        return os.system, ("exit 1",)


DAMAGED = "it is no dump of torch's flight recorder, or it is damaged"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is empty"),
        (b"{", DAMAGED),
        (b"[" * 100_000, DAMAGED),
        (b"{" + b'"a":{' * 100_000, DAMAGED),
        (b"nothing of the kind", DAMAGED),
        (PICKLED[0](a_dump(WAITS))[:-20], DAMAGED),
        (pickle.dumps({**a_dump(), "entries": [Hostile()]}), DAMAGED),
        (pickle.dumps({**a_dump(), "entries": bytearray(9)}, 5), DAMAGED),
        (as_json({**a_dump(), "entries": [{**WAITS, "profiling_name": [[]]}]}), DAMAGED),
        (as_json({**a_dump(), "entries": [{**WAITS, "time_created_ns": 10**400}]}), DAMAGED),
        (as_json({"pg_config": [], "entries": {}}), DAMAGED),
        (b" " * 101, "it is larger than 0 MiB"),
    ],
)
@pytest.mark.usefixtures("collects_nothing")
def test_a_file_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, problem: str
) -> None:
    if content.isspace():
        monkeypatch.setattr(recorder_files, "FILE_BYTES_MAX", 100)
    path = tmp_path / "_dump_1"
    path.write_bytes(content)
    with pytest.raises(UnreadableDumpError) as raised:
        dumps_in(tmp_path)
    assert str(raised.value) == f"{path}: {problem}"
    monkeypatch.undo()
    (tmp_path / "_dump_0").write_bytes(as_json(a_dump(WAITS)))
    dumps, problems = dumps_in(tmp_path)
    assert (list(dumps), len(problems)) == ([0], 1)


def test_folders_that_are_no_folders_of_dumps_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreadableDumpError, match="No such file or directory"):
        dumps_in(tmp_path / "none")
    with pytest.raises(UnreadableDumpError, match="no file has a name that ends in a rank"):
        dumps_in(tmp_path)
    for name in ("a_0", "b_0"):
        (tmp_path / name).write_bytes(as_json(a_dump(WAITS)))
    assert dumps_in(tmp_path)[1] == [f"{tmp_path / 'b_0'}: another file is of rank 0, too, and this one is left out"]
    monkeypatch.setattr(recorder_files, "FILES_MAX", 1)
    with pytest.raises(UnreadableDumpError, match="2 files, and at most 1 are read"):
        dumps_in(tmp_path)
    (tmp_path / "b_0").unlink()
    with pytest.raises(UnreadableDumpError, match="name 2 ranks, and at most 1 are judged"):
        samples_in(dumps_in(tmp_path)[0])


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*WAITS, "x"]), inner, max_size=9),
    max_leaves=9,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | PLAIN.map(as_json) | PLAIN.map(lambda data: as_json(a_dump({**WAITS, "state": data}))))
def test_whatever_a_file_holds_it_is_read_or_turned_down(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "_dump_0").write_bytes(content)
    try:
        dumps, _ = dumps_in(tmp_path)
    except UnreadableDumpError:
        return
    find_hang(samples_in(dumps))
