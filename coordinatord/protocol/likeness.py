"""Whether two workers failed of the same error, as far as it can be read. Pure."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


def is_same_error(one: str, other: str) -> bool:
    """Return whether two errors are the same, but for numbers: ranks, addresses and process ids differ.

    Two workers of which nothing is known have not said the same.
    """
    return bool(one) and _plain(one) == _plain(other)


def _plain(error: str) -> str:
    return _NUMBER.sub("0", error)
