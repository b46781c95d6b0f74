"""Formats times for people, in the time zone of the host that shows them. Each text names that zone.

So a terminal shows one clock: that of `journalctl`, of `dmesg -T` and of the training script's own log.
"""

from __future__ import annotations

from datetime import UTC, datetime


def local(at: float) -> datetime:
    """Convert seconds since 1970 to a time in this host's zone."""
    return datetime.fromtimestamp(at, UTC).astimezone()


def now() -> datetime:
    """Return the time of day of this host, in its zone."""
    return datetime.now(UTC).astimezone()


def moment(at: datetime, timespec: str = "seconds", sep: str = " ") -> str:
    """Format a time in its zone by ISO 8601: `2026-11-21 21:19:20-05:00`, or with a Z at the end in UTC."""
    text = at.isoformat(sep, timespec)
    return f"{text.removesuffix('+00:00')}Z" if text.endswith("+00:00") else text
