"""Counts the readers of one kind of thing, and turns away one too many: each costs memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coordinatord.server.http.responses import TurnedDownError


class ReaderCount:
    """The number of present readers."""

    def __init__(self) -> None:
        self._readers = 0

    @contextmanager
    def one_more(self, most: int, refusal: str) -> Iterator[None]:
        """Count a reader while the context lasts. Raises `TurnedDownError` with `refusal` if `most` read already."""
        if self._readers >= most:
            raise TurnedDownError(503, "busy", refusal)
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
