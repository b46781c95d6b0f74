"""Writes the findings of a script of these tests: one line of JSON a call, in a file that the test reads."""

import json
import os
import sys
from pathlib import Path


def report(**facts: object) -> None:
    """Write facts down, with the worker's round and rank, and whether it was started warm."""
    reports = {
        "round": int(os.environ["COORDINATORD_ROUND"]),
        "rank": int(os.environ["RANK"]),
        "warm": "beacon" in sys.modules,
        "parent": os.getppid(),
        "facts": facts,
    }
    with Path(os.environ["TOLD"]).open("ab", buffering=0) as file:
        file.write(f"{json.dumps(reports)}\n".encode())  # in one piece, as several workers write there
