"""Numbers and names as people read them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from coordinatord.protocol.http.api import RestartsStatus
from coordinatord.protocol.http.start_answers import WorkerStartsStatus

NAMES_MAX = 8
"""How many names a sentence has; the rest is counted."""


def duration(seconds: float) -> str:
    """Return a duration as one short word: 0s, 59s, 3m12s, 2h03m, 4d07h."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3_600, whole // 86_400
    if days:
        return f"{days}d{hours % 24:02}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"


def brief(seconds: float) -> str:
    """Return how long something short took: 12.5ms, 1.9s, and from ten seconds on as `duration` has it."""
    if seconds < 0.999:  # noqa: PLR2004 - of the unit
        return f"{1000 * seconds:.3g}ms"
    return f"{seconds:.2g}s" if seconds < 9.95 else duration(seconds)  # noqa: PLR2004 - there, tenths matter


def lasting(seconds: float, *, ended: bool) -> str:
    """Return how long a state lasts, ` for 3m12s`, or how long ago the end was that it stands for, ` 3m12s ago`."""
    return f" {duration(seconds)} ago" if ended else f" for {duration(seconds)}"


def count(number: int, thing: str) -> str:
    """Return a number with its noun: 1 node, 2 nodes."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def budget(restarts: RestartsStatus) -> str:
    """Return how many restarts were used, and the budget if there is one: restarts 1 of 3."""
    return f"restarts {restarts.used}" + ("" if restarts.max is None else f" of {restarts.max}")


def starts(status: WorkerStartsStatus | None) -> str:
    """Return how workers were started: 3 in place, 1 warm. Empty if that is not known, or none was."""
    if status is None:
        return ""
    ways = ((status.in_place, "in place"), (status.warm, "warm"), (status.cold, "cold"))
    return ", ".join(f"{number} {way}" for number, way in ways if number)


def listed(names: Sequence[str], total: int | None = None) -> str:
    """Return a list of names as text; `total` counts those that are not given as well: a, b and 3 more."""
    total = len(names) if total is None else max(total, len(names))
    shown = names[:NAMES_MAX]
    more = total - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more and shown else "")


def nearest(wrong: str, known: Collection[str]) -> str | None:
    """Return the known name that is most like a wrong one; None if none is."""
    import difflib  # noqa: PLC0415 - few names are wrong

    return next(iter(difflib.get_close_matches(wrong, known, n=1)), None)
