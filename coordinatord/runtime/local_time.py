"""Writes moments for people, in the time zone of the host that shows them. Each text names that zone.

So one terminal shows one clock: that of `journalctl`, of `dmesg -T` and of the training script's own log. Nobody
misreads the times of hosts in several zones.
"""

from __future__ import annotations

from datetime import UTC, datetime


def local(at: float) -> datetime:
    """Return a moment, in seconds since 1970, in this host's zone."""
    return datetime.fromtimestamp(at, UTC).astimezone()


def now() -> datetime:
    """Return the time of day of this host, in its zone."""
    return datetime.now(UTC).astimezone()


def moment(at: datetime, timespec: str = "seconds", sep: str = " ") -> str:
    """Write a moment in its zone by ISO 8601: `2026-11-21 21:19:20-05:00`, and in UTC with a Z at the end."""
    text = at.isoformat(sep, timespec)
    return f"{text.removesuffix('+00:00')}Z" if text.endswith("+00:00") else text
