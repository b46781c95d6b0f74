"""Finds out whether workers failed with the same error, in one round or in two, and says how many did. Pure.

A bug of the script or a bad setting ends all ranks at once. Which of them came first means nothing then.
"""

from __future__ import annotations

import re

from coordinatord.hints.network import lost_connection
from coordinatord.protocol.exit_codes import shell_exit_code
from coordinatord.protocol.messages import Failure
from coordinatord.protocol.text import is_same_error

_FRAME = re.compile(r'\s*File "[^"]+", line \d+|[│|] *[^ ]+:\d+(?= in )')
"""A frame of a Python traceback, also of one by rich, without the function."""


def have_same_error(one: Failure, other: Failure) -> bool:
    """Whether two workers failed with the same error: numbers in its text, such as ranks, may differ.

    If neither has a text, they need the same signal or exit code, and not 1, which tells nothing. If only one of
    them lost a connection, their errors differ.
    """
    texts = [each.error or each.message for each in (one, other)]
    if any(texts):
        return is_same_error(*texts)
    codes = {shell_exit_code(each.exit_code) for each in (one, other)}
    return len(codes) == 1 and 1 not in codes and lost_connection(one) == lost_connection(other)


def shared_by(failure: Failure, same_error_count: int, workers: int) -> str:
    """Say which workers of a round failed with the same error: `all 4 ranks`, `3 ranks`; empty if only one did.

    Empty as well if the error is a consequence of another worker's failure, or if no process has failed. `workers` is
    their number in the round, 0 if not known; `same_error_count` is how many others are known to have the same error.
    """
    has_failed = failure.pid and failure.hang is None and not failure.diverged
    if not (same_error_count and has_failed) or failure.left or lost_connection(failure):
        return ""
    count = same_error_count + 1
    return f"all {count} ranks" if count == workers else f"{count} ranks"


def is_repeat(failure: Failure, previous: Failure) -> bool:
    """Whether two rounds had the same error; numbers in it, such as process ids, may differ."""
    texts = [each.error or each.message for each in (failure, previous)]
    return failure.exit_code == previous.exit_code and (texts[0] == texts[1] or is_same_error(*texts))


def is_at_same_place(failure: Failure, previous: Failure) -> bool:
    """Whether two errors have the same traceback: the same lines of the same files called each other."""
    frames = [[_FRAME.match(line) for line in each.last_lines] for each in (failure, previous)]
    places = [[frame[0] for frame in each if frame] for each in frames]
    return bool(places[0]) and places[0] == places[1]
