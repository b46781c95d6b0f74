"""A module to preload: a process that has it without importing it was started warm.

It writes down which processes load it.
"""

from __future__ import annotations

import os

with open(os.environ["BEACON"], "a", encoding="ascii") as file:  # noqa: PTH123 - pathlib would be loaded with it
    file.write(f"{os.getpid()}\n")
