"""Repeats a read for commands that wait or follow, so that they outlast a coordinator's restart.

`repeat` asks again once a second. While no coordinator answers it goes on, and says why once. An error that a retry
does not mend ends it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from nodeclient.operate.client import RequestError, pause

EVERY_S = 1.0
"""The interval of requests: nodes report once a second, and a restarted coordinator serves within a second."""

Result = TypeVar("Result")


def repeat(
    request: Callable[[], Iterable[Result]], *, answered: bool = True, ends_at: float = math.inf
) -> Iterator[Result]:
    """Yield the results of one request after the other, until `ends_at` in seconds of the monotonic clock.

    `request` returns the results of one: a single answer, or those of a stream. `answered` tells whether a coordinator
    has answered this command already. Until one has, every error is raised; after that only those that last.
    """
    is_warned = False
    while True:
        asked_at = time.monotonic()
        try:
            for result in request():
                answered, is_warned = True, False
                yield result
        except RequestError as error:
            if not (answered and error.is_temporary):
                raise
            if not is_warned:
                sys.stderr.write(f"nodeclient: {error}; trying again\n")
            is_warned = True
        now = time.monotonic()
        if now >= ends_at:
            return
        pause(max(0.0, min(asked_at + EVERY_S, ends_at) - now))
