"""Reads dumps of torch's flight recorder, which it writes when a collective times out, one a rank, for any launcher.

Their names end in the rank: `_dump_3`, `nccl_trace_rank_3` or `3.json`. They are JSON, or pickles of plain data. No
file is trusted: of a pickle, only instructions for plain data are executed, and only expected data is used.
"""

from __future__ import annotations

import io
import json
import pickle  # noqa: TID251 - only plain data, see `_PLAIN`
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from coordinatord.hints.seen_worker import SeenWorker
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.stack_messages import StackOrigin, WorkerStacks
from nodeclient.diagnosis.stack_text import locate
from workerlib.contract import recorders

FILES_MAX = 16_384
"""The limit of files: as many as the workers that `nodeclient stacks` reads at once."""

FILE_BYTES_MAX = 64 * 1024**2
"""The limit of a file: 2,000 entries have a megabyte, or some ten with their stacks."""

_NAME = re.compile(r"(?:.*\D)?(\d{1,6})(?:\.json|\.pkl|\.pickle)?")

_PLAIN = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.MEMOIZE, pickle.POP),
    *(pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.GET, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BINFLOAT),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.SHORT_BINUNICODE, pickle.BINUNICODE),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
)
"""The pickle instructions that make plain data: none of them imports, calls or allocates by a number."""


class UnreadableDumpError(OperationalError):
    """A file is no dump of torch's flight recorder, or is too large."""


class _PlainUnpickler(pickle._Unpickler):  # noqa: SLF001 - the one in Python has a table
    """Reads plain data, and rejects everything else."""

    dispatch = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _PLAIN}  # noqa: RUF012, SLF001


class Dump(Struct, frozen=True):
    """The recording of one rank."""

    entries: tuple[dict[str, Any], ...]
    groups: Mapping[str, tuple[str, tuple[int, ...]]]
    """The description and the ranks of each of the rank's process groups, by name."""


def dumps_in(folder: Path) -> tuple[dict[int, Dump], list[str]]:
    """Return the dumps in a folder by rank, and why others cannot be read.

    Raises `UnreadableDumpError` if no file can be read.
    """
    dumps: dict[int, Dump] = {}
    problems: list[str] = []
    for rank, path in _files(folder):
        if rank in dumps:
            problems.append(f"{path}: another file is of rank {rank}, too, and this one is left out")
            continue
        try:
            dumps[rank] = _read(path)
        except UnreadableDumpError as error:
            problems.append(str(error))
    if not dumps:
        raise UnreadableDumpError("; ".join(problems[:1]) or f"{folder}: no file has a name that ends in a rank")
    return dumps, problems


def seen_in_dumps(dumps: Mapping[int, Dump]) -> list[SeenWorker]:
    """Return a sample of each rank; one without entries is silent, if others know of it.

    Raises `UnreadableDumpError` if there are too many ranks.
    """
    known = {rank for dump in dumps.values() for _, ranks in dump.groups.values() for rank in ranks}
    if len(known) > FILES_MAX:
        raise UnreadableDumpError(f"the files speak of {len(known)} ranks, and at most {FILES_MAX} are judged")
    return [
        SeenWorker("", rank, _stands(rank, dumps[rank]) if rank in dumps and dumps[rank].entries else None)
        for rank in sorted(known | dumps.keys())
    ]


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the files whose names end in a rank."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and _NAME.fullmatch(path.name))
    except OSError as error:
        raise UnreadableDumpError(f"{folder}: {error.strerror}") from error
    if len(paths) > FILES_MAX:
        raise UnreadableDumpError(f"{folder}: {len(paths)} files, and at most {FILES_MAX} are read")
    for path in paths:
        if match := _NAME.fullmatch(path.name):
            yield int(match[1]), path


def _read(path: Path) -> Dump:
    """Read one file. Raises `UnreadableDumpError`."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UnreadableDumpError(f"{path}: {error.strerror}") from error
    if not content:
        raise UnreadableDumpError(f"{path}: it is empty")
    if len(content) > FILE_BYTES_MAX:
        raise UnreadableDumpError(f"{path}: it is larger than {FILE_BYTES_MAX // 1024**2} MiB")
    try:
        data = json.loads(content) if content.lstrip()[:1] == b"{" else _PlainUnpickler(io.BytesIO(content)).load()
        groups = {str(name): _group(group) for name, group in data["pg_config"].items()}
        return Dump(tuple(map(_entry, data["entries"])), groups)
    except Exception as error:
        raise UnreadableDumpError(f"{path}: it is no dump of torch's flight recorder, or it is damaged") from error


def _group(group: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
    ranks = group["ranks"]
    numbers = re.findall(r"\d{1,7}", ranks) if isinstance(ranks, str) else map(_whole, ranks)
    return _text(group["desc"]), tuple(map(int, numbers))


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the used fields of an entry. Raises any error if one is invalid."""
    name, description = entry["process_group"]
    return {
        "process_group": (_text(name), _text(description)),
        "is_p2p": bool(entry["is_p2p"]),
        "retired": bool(entry["retired"]),
        "state": _text(entry.get("state", "")),
        "collective_seq_id": _whole(entry["collective_seq_id"]),
        "p2p_seq_id": _whole(entry["p2p_seq_id"]),
        "profiling_name": _text(entry["profiling_name"]),
        "time_created_ns": _whole(entry["time_created_ns"]),
        "input_sizes": [[_whole(number) for number in size] for size in entry["input_sizes"]],
        "input_dtypes": [_text(kind) for kind in entry["input_dtypes"]],
    }


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise TypeError
    return value


def _stands(rank: int, dump: Dump) -> WorkerStacks:
    """Return a sample of a rank. A recorder may omit completed collectives, and so groups in which nothing waits."""
    found = recorders.by_group(dump.entries, lambda name: dump.groups.get(name, ("", ()))[1], now_ns=0)
    groups = ((name, description, ranks) for name, (description, ranks) in dump.groups.items())
    place = locate(recorders.in_order(found, groups, dump.entries))
    return WorkerStacks(
        *(rank, StackOrigin.WORKER, b"", "unknown", "", 0.0, place.collective, ""),
        members=place.members,
        places=place.places,
    )
