"""The types of the fields that answers of the HTTP API have: wide enough for any release, and fit to be shown."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.fields import LINE_MAX
from coordinatord.protocol.schema import printable

NUMBER_MAX = 2**62
"""The limit of steps, seconds and times: no training job has a greater number."""

ITEMS_MAX = 1_000_000
"""The limit of a list: ranks are the most numerous, and there are no more of them."""

Number = Annotated[float, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
Whole = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
AnyText = Annotated[str, printable(4_096)]
"""A name or a sentence, fit for a terminal; no reason of a coordinator is longer."""
AnyLine = Annotated[str, printable(LINE_MAX)]
"""A line that a worker wrote."""
