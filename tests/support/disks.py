"""Small and read-only disks, each seen by one program alone."""

from __future__ import annotations

from pathlib import Path

from tests.support.namespaces import apart


def small_disk(place: Path, size_kib: int) -> tuple[str, ...]:
    """Return the prefix of a command that is to see an empty disk of this size in `place`."""
    return _on(place, f"mount -t tmpfs -o size={size_kib}k,mode=700 none {place}")


def read_only_disk(place: Path) -> tuple[str, ...]:
    """Return the prefix of a command that is to see `place` as it is, and read-only."""
    return _on(place, f"mount --bind {place} {place} && mount -o remount,ro,bind {place}")


def _on(place: Path, mount: str) -> tuple[str, ...]:
    """Return the prefix of a command that sees a mount. Skips the test if nothing can be mounted."""
    place.mkdir(exist_ok=True)
    return apart("--mount", setup=mount)
