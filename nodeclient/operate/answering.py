"""Finds out which of several coordinators answers: a paused one accepts connections, and then sends nothing.

They are asked in turn. If one does not answer soon, the next one is asked too, and the earlier ones may still answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from nodeclient.access.contact_points import ContactPoint

NEXT_AFTER_S = 1.0
"""How long a coordinator may take before the next one is asked too: a hundred times as long as an answer takes."""


def sort_by_answers(
    contacts: Sequence[ContactPoint], is_healthy: Callable[[ContactPoint], bool], within_s: float
) -> tuple[list[ContactPoint], list[ContactPoint]]:
    """Return the coordinators to send a request to, a healthy one first, and those that have not answered in time.

    `is_healthy` waits for an answer. It is called in threads, and raises nothing. This function returns when one
    coordinator is healthy, when all have answered, or after `within_s` seconds.
    """
    ends_at, results = time.monotonic() + within_s, SimpleQueue[tuple[ContactPoint, bool]]()
    not_asked, silent, unhealthy = list(contacts), list[ContactPoint](), list[ContactPoint]()
    while not_asked or silent:
        if not_asked:
            silent.append(not_asked.pop(0))
            threading.Thread(target=_put_result, args=(silent[-1], is_healthy, results), daemon=True).start()
        for _ in tuple(silent):
            left_s = ends_at - time.monotonic()
            try:
                contact, healthy = results.get(timeout=max(0.0, min(NEXT_AFTER_S, left_s) if not_asked else left_s))
            except Empty:
                if not_asked:
                    break
                return unhealthy, silent
            silent.remove(contact)
            if healthy:
                return [contact, *not_asked, *unhealthy], silent
            unhealthy.append(contact)
    return unhealthy, []


def _put_result(
    contact: ContactPoint, is_healthy: Callable[[ContactPoint], bool], results: SimpleQueue[tuple[ContactPoint, bool]]
) -> None:
    results.put((contact, is_healthy(contact)))
