"""Reads torch's flight recorders: which collectives a worker waits in, and when it arrived in its last ones.

torch keeps a flight recorder for each backend, with an entry for each collective. Its functions are not public, so any
of them may have changed in another release: every failed call then counts as "not known".

`collectives` answers where the worker is now, by a list of dicts. Each has a `number`, which counts the collectives of
its group, and is 0 if there was none, and one of these values of `state`:

* `moves`: the worker gets on. Each group has one dict.
* `waits`: an operation of the group is pending. Each has a dict: a collective, or an exchange with one peer.
* `done`: no collective of the group is pending. The dict is for its last one.

`arrivals` answers when the worker came to its last collectives.

A recorder has entries, and counters of each group, which only show whether the worker gets on. A batch of operations
has several entries with one number. Exchanges between two ranks (`is_p2p`) have numbers of their own.

With these functions, nodeclient also evaluates the files of entries that torch writes after a timeout. The hook of
`--preload` loads this file by its path, so it uses only the standard library, from Python 3.10 on, and no other module
of this package.
"""

from __future__ import annotations

import _thread
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

GROUPS_MAX, COLLECTIVES_MAX = 32, 64
"""The most process groups, and the most collectives, in an answer, which has to fit into one packet."""

NAME_MAX = 32
"""The most characters of a group's description and name; the description is cut first."""

_PEER = re.compile(r"([\w-]+:(?:send|recv)) \d+(->|<-)(\d+)")
"""How a recorder names an exchange with a peer: `nccl:send 0->3`, by their ranks within the group."""

GROUP_NAME_MAX = 8
"""The most characters of a group's name, which is a number, or the digits of a hash."""

ENTRIES_MIN = 64
"""The least number of entries of a recorder that are read, from the last one back. Reading goes on while, in any group,
the earliest entry that was read is pending: the worker waits in the first pending entry, which may be earlier still."""

PENDING_MAX = 512
"""The most entries that are read in all: to parse them takes a hundredth of a second."""

ENTRY = '{"collective_seq_id":'
"""The beginning of an entry, whose keys are in order."""

COUNTERS_APART_S = 0.02
"""The time between two reads of the counters."""

RECORDERS: dict[str, tuple[str, dict[str, str]]] = {
    "nccl": ("_dump_nccl_trace_json", {}),
    "gloo": ("_dump_fr_trace_json", {}),
    "nccl2": ("_dump_fr_trace_json", {"backend": "nccl2"}),
    "nccl-lazy": ("_dump_fr_trace_json", {"backend": "nccl-lazy"}),
}
"""The functions that dump torch's flight recorders, and their arguments. A torch may have any of them, see
docs/compatibility.md: from 2.15 on `nccl` is another engine by default, `nccl2`."""

HANDLER = "fr_trace_json"
"""The name of gloo's recorder in torch's server for workers (torch/csrc/distributed/c10d/control_plane). The handler of
NCCL's recorder reads parameters of a request, and so does this one from torch 2.15 on. A request that is made in Python
cannot have any. The call then fails, and `_dump` calls the function in `RECORDERS`."""

C10D = "torch._C._distributed_c10d"
"""torch's module with the recorders. It is only looked up: a script that has not imported it has recorded nothing."""

_earlier_groups: set[tuple[str, str]] = set()
"""The recorder and the number of each process group of earlier rounds, which are left out of answers."""

_dump_lock = _thread.allocate_lock()
"""Held while torch dumps a recorder without the interpreter's lock, and for ever once this process ends."""

DUMP_WITHIN_S = 10.0
"""How long the end of a process waits for a dump, which takes a tenth of a second; longer on a busy host."""


def collectives() -> list[dict[str, Any]]:
    """Return where this worker is in each process group, as `in_order` sorts them; none if that is not known.

    Counters cost 20 microseconds, and entries a twentieth of a second. So the counters are read twice, and if any has
    changed, only they are returned.
    """
    c10d = sys.modules.get(C10D)
    before = {recorder: _counters(c10d, recorder) for recorder in RECORDERS}
    if not any(before.values()):
        return []
    time.sleep(COUNTERS_APART_S)  # noqa: TID251 - this thread waits for nothing else
    now_ns = time.time_ns()
    moves = any(_counters(c10d, recorder) != counters for recorder, counters in before.items())
    if moves:
        # Counters have only torch's number of a group, and not its name: nothing compares the groups of such a worker.
        return [
            {"group": group, "number": counters["last_enqueued_collective"], "state": "moves"}
            for status in before.values()
            for group, counters in islice(status.items(), GROUPS_MAX)
        ]
    found: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    for recorder, counters in before.items():
        with suppress(Exception):  # its interface is not public, so it may have changed in any way
            own = _pending_entries(_dump(c10d, recorder), recorder) if counters else []
            found += by_group(own, _ranks_of, now_ns)
            entries += own
    return in_order(found, _torch_groups(), entries)


def arrivals(most: int) -> list[dict[str, Any]]:
    """Return when this worker arrived in its last `most` collectives, by process group; none if that is not known."""
    c10d = sys.modules.get(C10D)
    found: list[dict[str, Any]] = []
    for recorder in RECORDERS:
        with suppress(Exception):  # its interface is not public, so it may have changed in any way
            if _counters(c10d, recorder):
                found += _arrivals_by_group([*islice(_newest_first(_dump(c10d, recorder), recorder), most)][::-1])
    return sorted(found, key=lambda series: -len(series["times_ns"]))[:GROUPS_MAX]


def begin_round() -> None:
    """Leave the present process groups out of later answers."""
    _earlier_groups.update(
        (recorder, group) for recorder in RECORDERS for group in _counters(sys.modules.get(C10D), recorder)
    )


def reset_in_child() -> None:
    """Replace the lock in a forked child, since a thread of its parent may hold it."""
    global _dump_lock  # noqa: PLW0603 - one process has one lock
    _dump_lock = _thread.allocate_lock()


def await_dump() -> None:
    """Wait for the end of a dump, and prevent later ones, since this process ends.

    During its finalization, Python ends each thread that requests its lock. Within torch's code, C++ then calls
    `std::terminate`, and a worker that has done its work dies of SIGABRT.
    """
    _dump_lock.acquire(timeout=DUMP_WITHIN_S)


def _torch_groups() -> Iterator[tuple[str, str, Sequence[int]]]:
    """Yield the name, the description and the ranks of each group of this worker."""
    with suppress(Exception):  # its interface is not public, so it may have changed in any way
        distributed = sys.modules["torch.distributed"]
        for group, name in distributed.distributed_c10d._world.pg_names.items():  # noqa: SLF001 - as above
            yield name, group.group_desc, distributed.get_process_group_ranks(group)


def in_order(
    found: Sequence[dict[str, Any]],
    groups: Iterable[tuple[str, str, Sequence[int]]],
    entries: Sequence[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Sort collectives: first those in which the worker waits, the oldest first; then those done, the newest first.

    At the end come the groups of the worker for which `entries` has no collective: other workers may wait for this one
    there. If `found` is empty, the recorder may be off, and these groups are left out.
    """
    waiting = [each for each in found if each["state"] == "waits"]
    others = [each for each in found if each["state"] != "waits"]
    begun = {entry["process_group"][0] for entry in entries if not entry["is_p2p"]}
    unused = [group_name((name, text), ranks) for name, text, ranks in groups if found and name not in begun]
    return [
        *sorted(waiting, key=lambda each: -each["age_s"]),
        *sorted(others, key=lambda each: each["age_s"]),
        *({"group": name, "number": 0, "state": "done"} for name in unused),
    ]


def _counters(c10d: Any, recorder: str) -> dict[str, Any]:
    """Return a recorder's counters by the number of their process group; none if torch has no such recorder."""
    name, backend = RECORDERS[recorder]
    try:
        status = json.loads(getattr(c10d, name)(False, **backend))["pg_status"]  # False: without entries
        return {group: counters for group, counters in status.items() if (recorder, group) not in _earlier_groups}
    except Exception:  # noqa: BLE001 - its interface is not public, so it may have changed in any way
        return {}


def _dump(c10d: Any, recorder: str) -> str:
    """Return the content of a recorder, if possible without the interpreter's lock, which would stop the script."""
    if recorder == "gloo" and _dump_lock.acquire(blocking=False):
        try:
            return _dump_without_lock(c10d)
        except Exception:  # noqa: BLE001, S110 - this torch has no such handler
            pass
        finally:
            _dump_lock.release()
    name, backend = RECORDERS[recorder]
    return str(getattr(c10d, name)(True, **backend).decode())


def _dump_without_lock(c10d: Any) -> str:
    """Return the content of gloo's recorder; the caller holds `_dump_lock`.

    It calls a handler of torch's server for workers, which runs without the interpreter's lock for a tenth of a second.
    """
    contents: list[str] = []
    request = type("Request", (c10d._Request,), {"body": lambda _: b""})  # noqa: SLF001
    setters = {"set_content": lambda _, content, __: contents.append(content), "set_status": lambda _, __: None}
    response = type("Response", (c10d._Response,), setters)  # noqa: SLF001 - none of it is public
    c10d._get_handler(HANDLER)(request(), response())  # noqa: SLF001 - as above
    return contents[0]


def _pending_entries(text: str, recorder: str) -> list[dict[str, Any]]:
    """Return the last entries of a recorder, the oldest first; see `ENTRIES_MIN` for how many."""
    found: list[dict[str, Any]] = []
    pending: set[tuple[str, bool]] = set()
    """The groups whose earliest entry so far is pending. Collectives and exchanges (`is_p2p`) are told apart."""
    for entry in islice(_newest_first(text, recorder), PENDING_MAX):
        if len(found) >= ENTRIES_MIN and not pending:
            break
        found.append(entry)
        (pending.discard if _is_done(entry) else pending.add)((entry["process_group"][0], entry["is_p2p"]))
    return found[::-1]


def _newest_first(text: str, recorder: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of this round in the content of a recorder, the last one first; others are not parsed."""
    decoder, at = json.JSONDecoder(), len(text)
    while (at := text.rfind(ENTRY, 0, at)) >= 0:
        entry = decoder.raw_decode(text, at)[0]
        if (recorder, str(entry.get("pg_id"))) in _earlier_groups:
            return
        yield entry


def by_group(
    entries: Sequence[dict[str, Any]], ranks_of: Callable[[str], Sequence[int]], now_ns: int
) -> list[dict[str, Any]]:
    """Return the first pending entry of each operation in each group, and the last collective where none is pending.

    A worker may have begun exchanges with several peers, and waits for each: their operations name the peer. Sends and
    receives that are done are left out. `ranks_of` returns the ranks of a group in its own order, none if they are not
    known. `now_ns` is the time in nanoseconds since 1970.
    """
    # The last entry of a batch is called `coalesced`. When the batch is done, torch marks only that entry.
    done = {_batch(entry) for entry in entries if entry["profiling_name"].endswith(":coalesced") and _is_done(entry)}
    waiting: dict[tuple[str, str], dict[str, Any]] = {}
    """The first pending entry, by group and operation."""
    last: dict[str, dict[str, Any]] = {}
    """The last collective that is done, by group."""
    for entry in entries:
        name = entry["process_group"][0]
        if not _is_done(entry) and _batch(entry) not in done:
            waiting.setdefault((name, entry["profiling_name"]), entry)
        elif not entry["is_p2p"] and _is_done(entry):
            last[name] = entry
    pending = {entry["process_group"][0] for entry in waiting.values() if not entry["is_p2p"]}
    chosen = [*waiting.values(), *(entry for name, entry in last.items() if name not in pending)]
    return [_answer_of(entry, ranks_of(entry["process_group"][0]), now_ns) for entry in chosen[:COLLECTIVES_MAX]]


def _is_done(entry: dict[str, Any]) -> bool:
    return bool(entry["retired"] or entry.get("state") == "completed")


def _batch(entry: dict[str, Any]) -> tuple[str, bool, int]:
    """Return the group and the number there, which the entries of a batch share."""
    return entry["process_group"][0], entry["is_p2p"], _number(entry)


def _number(entry: dict[str, Any]) -> int:
    return int(entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"])


def _answer_of(entry: dict[str, Any], ranks: Sequence[int], now_ns: int) -> dict[str, Any]:
    """Return an entry for the answer; a peer is named by its global rank, and not by its rank within the group."""
    operation = entry["profiling_name"]
    peer = _PEER.fullmatch(operation) if entry["is_p2p"] else None
    if peer is not None and int(peer[3]) < len(ranks):
        operation = f"{peer[1]} {'to' if peer[2] == '->' else 'from'} {ranks[int(peer[3])]}"
    return {
        "group": group_name(entry["process_group"], ranks),
        "members": len(ranks),
        "number": _number(entry),
        "state": "done" if _is_done(entry) else "waits",
        "operation": operation,
        "sizes": entry["input_sizes"],
        "types": entry["input_dtypes"],
        "age_s": (now_ns - entry["time_created_ns"]) / 1e9,
    }


def group_name(named: Sequence[str], ranks: Sequence[int]) -> str:
    """Return a readable name of a group: `named` is its name and description in torch, which groups may share.

    Groups that were split off from one group in the same call share even both, so the name has their first rank.
    """
    name, description = named
    if description == "default_pg":
        return description
    number = f"{name[:GROUP_NAME_MAX]}{f'@{ranks[0]}' if ranks and ranks[0] else ''}"
    described = "group" if description in {"", "undefined"} else description
    return f"{described[: NAME_MAX - 1 - len(number)]} {number}"


def _ranks_of(name: str) -> list[int]:
    """Return the ranks of a group in its own order; none if they are not known."""
    try:
        group = sys.modules[C10D]._resolve_process_group(name)  # noqa: SLF001 - not public
        return list(sys.modules["torch.distributed"].get_process_group_ranks(group))
    except Exception:  # noqa: BLE001 - it may have changed in any way
        return []


def _arrivals_by_group(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the arrivals in the last collectives of each group, as far back as their numbers have no gap.

    A group with two backends has numbers of its own for each of them, so it counts as two groups.
    """
    groups: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry["is_p2p"]:
            continue
        name, number = entry["process_group"][0], entry["collective_seq_id"]
        series = groups.get(name)
        following = None if series is None else series["first"] + len(series["times_ns"])
        if following is not None and number == following - 1:
            continue  # several operations may be one collective
        if series is None or number != following:
            backend = entry["profiling_name"].partition(":")[0]
            group = f"{backend} {group_name(entry['process_group'], _ranks_of(name))}"
            series = groups[name] = {"group": group, "first": number, "times_ns": []}
        series["times_ns"].append(entry["time_created_ns"])
    return list(groups.values())
