"""The types of the fields that answers of the HTTP API have: wide enough for any release, and fit to be shown."""

from __future__ import annotations

from typing import Annotated

from coordinatord.protocol.fields import LINE_MAX
from coordinatord.protocol.schema import Clipped, Range

NUMBER_MAX = 2.0**62
"""The limit of steps, seconds and times: no training job has a greater number."""

ITEMS_MAX = 1_000_000
"""The limit of a list: ranks are the most numerous, and there are no more of them."""

Number = Annotated[float, Range(-NUMBER_MAX, NUMBER_MAX)]
Whole = Annotated[int, Range(0, NUMBER_MAX)]
AnyText = Annotated[str, Clipped(4_096)]
"""A name or a sentence, made fit for a terminal where it is read; no reason of a coordinator is longer."""
AnyLine = Annotated[str, Clipped(LINE_MAX)]
"""A line that a worker wrote."""
