"""Reads the files that torch's flight recorder writes when a collective times out, for `nodeclient stacks --dumps`.

So a hang under any launcher gets the verdict that it would get here. Each rank has a file, whose name ends in the rank:
`_dump_3`, `nccl_trace_rank_3` or `3.json`. It is JSON, or a pickle of plain data. No file is trusted: only pickle
instructions for plain data are executed, and only expected data is used.
"""

from __future__ import annotations

import io
import json
import pickle  # noqa: TID251 - only plain data, see `_PLAIN`
import re
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta, Struct, convert

from coordinatord.hints.seen_worker import SeenWorker
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.stack_messages import StackOrigin, WorkerStacks
from nodeclient.diagnosis.stack_text import locate
from workerlib.contract import recorders

FILES_MAX = 16_384
"""The limit of files: as many as the workers that `nodeclient stacks` reads at once."""

FILE_BYTES_MAX = 64 * 1024**2
"""The limit of a file: 2,000 entries take a megabyte, or some ten with their stacks."""

_NAME = re.compile(r"(?:.*\D)?(\d{1,6})(?:\.json|\.pkl|\.pickle)?")
"""The name of a file, with the rank."""

_PLAIN = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.MEMOIZE, pickle.POP),
    *(pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.GET, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BINFLOAT),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.SHORT_BINUNICODE, pickle.BINUNICODE),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
)
"""The pickle instructions that make plain data: none imports, calls, or allocates memory by a number in the file."""


class UnreadableDumpError(OperationalError):
    """A file is no dump of torch's flight recorder or is too large, or a folder has no dumps."""


class _PlainUnpickler(pickle._Unpickler):  # noqa: SLF001 - the one written in Python has a table of instructions
    """Reads plain data, and rejects everything else."""

    dispatch = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _PLAIN}  # noqa: RUF012, SLF001


_Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A whole number, which may be nanoseconds since 1970."""


class _DumpedOperation(TypedDict):
    """The used fields of a recorded operation."""

    process_group: tuple[str, str]
    is_p2p: bool
    retired: bool
    state: NotRequired[str]
    collective_seq_id: _Whole
    p2p_seq_id: _Whole
    profiling_name: str
    time_created_ns: _Whole
    input_sizes: list[list[_Whole]]
    input_dtypes: list[str]


class _DumpedGroup(TypedDict):
    desc: str
    ranks: str | list[_Whole]


class _DumpContent(TypedDict):
    pg_config: dict[str, _DumpedGroup]
    entries: tuple[_DumpedOperation, ...]


class Dump(Struct, frozen=True):
    """The recording of one rank."""

    entries: tuple[dict[str, Any], ...]
    """The operations, as `workerlib.contract.recorders` reads them."""
    groups: Mapping[str, tuple[str, tuple[int, ...]]]
    """The description and the ranks of each of the rank's process groups, by name."""


def dumps_in(folder: Path) -> tuple[dict[int, Dump], list[str]]:
    """Return the dumps in a folder by rank, and why others are unreadable. Raises `UnreadableDumpError` if all are."""
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


def samples_in(dumps: Mapping[int, Dump]) -> list[SeenWorker]:
    """Return a sample of each rank that a dump names. A rank without entries is silent.

    Raises `UnreadableDumpError` if there are too many ranks.
    """
    known = {rank for dump in dumps.values() for _, ranks in dump.groups.values() for rank in ranks}
    if len(known) > FILES_MAX:
        raise UnreadableDumpError(f"the files name {len(known)} ranks, and at most {FILES_MAX} are judged")
    return [
        SeenWorker("", rank, _sample(rank, dumps[rank]) if rank in dumps and dumps[rank].entries else None)
        for rank in sorted(known | dumps.keys())
    ]


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the files whose names end in a rank."""
    try:
        named = [(path, match) for path in folder.iterdir() if path.is_file() and (match := _NAME.fullmatch(path.name))]
    except OSError as error:
        raise UnreadableDumpError(f"{folder}: {error.strerror}") from error
    if len(named) > FILES_MAX:
        raise UnreadableDumpError(f"{folder}: {len(named)} files, and at most {FILES_MAX} are read")
    for path, match in sorted(named, key=itemgetter(0)):
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
        dump: Any = convert(data, _DumpContent)
    except Exception as error:
        raise UnreadableDumpError(f"{path}: it is no dump of torch's flight recorder, or it is damaged") from error
    return Dump(dump["entries"], {name: (group["desc"], _ranks(group)) for name, group in dump["pg_config"].items()})


def _ranks(group: _DumpedGroup) -> tuple[int, ...]:
    """Return the ranks of a process group; torch may write them as a text, such as `[0, 1]`."""
    ranks = group["ranks"]
    return tuple(map(int, re.findall(r"\d{1,7}", ranks) if isinstance(ranks, str) else ranks))


def _sample(rank: int, dump: Dump) -> WorkerStacks:
    """Return a sample of a rank, from its recording.

    A recorder may omit completed collectives. Then a group in which nothing waits is in `groups`, but has no entries.
    No file says when it was written, so the collectives have no ages.
    """
    found = recorders.by_group(dump.entries, lambda name: dump.groups.get(name, ("", ()))[1], now_ns=0)
    groups = ((name, description, ranks) for name, (description, ranks) in dump.groups.items())
    place = locate(recorders.in_order(found, groups, dump.entries))
    return WorkerStacks(
        rank=rank,
        origin=StackOrigin.WORKER,
        stacks=b"",
        state="unknown",
        waits_in="",
        cpus=0.0,
        collective=place.collective,
        problem="",
        members=place.members,
        places=place.places,
    )
