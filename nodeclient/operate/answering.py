"""Finds out which of several coordinators answers. One that is paused takes connections, and then says nothing.

They are asked in turn. If one does not answer within a moment, the next one is asked too. The earlier ones may still
answer.
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
    contacts: Sequence[ContactPoint], look: Callable[[ContactPoint], bool], within_s: float
) -> tuple[list[ContactPoint], list[ContactPoint]]:
    """Return whom to ask, the first that is well at the front, and those who have not answered by then.

    `look` returns whether a coordinator answers and is well. It is called in threads, and raises nothing. This function
    returns when one coordinator is well, when all have answered, or after `within_s` seconds.
    """
    ends_at, results = time.monotonic() + within_s, SimpleQueue[tuple[ContactPoint, bool]]()
    ahead, silent, ill = list(contacts), list[ContactPoint](), list[ContactPoint]()
    while ahead or silent:
        if ahead:
            silent.append(ahead.pop(0))
            threading.Thread(target=_report, args=(silent[-1], look, results), daemon=True).start()
        for _ in tuple(silent):
            left_s = ends_at - time.monotonic()
            try:
                contact, is_well = results.get(timeout=max(0.0, min(NEXT_AFTER_S, left_s) if ahead else left_s))
            except Empty:
                if ahead:
                    break
                return ill, silent
            silent.remove(contact)
            if is_well:
                return [contact, *ahead, *ill], silent
            ill.append(contact)
    return ill, []


def _report(
    contact: ContactPoint, look: Callable[[ContactPoint], bool], results: SimpleQueue[tuple[ContactPoint, bool]]
) -> None:
    results.put((contact, look(contact)))
