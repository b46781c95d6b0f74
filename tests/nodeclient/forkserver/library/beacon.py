"""A module to preload: whoever has it without asking for it was started warm. It writes down who loads it."""

from __future__ import annotations

import os

with open(os.environ["BEACON"], "a", encoding="ascii") as file:  # noqa: PTH123 - pathlib would be loaded with it
    file.write(f"{os.getpid()}\n")
