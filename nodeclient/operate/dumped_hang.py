"""`nodeclient stacks --dumps`: finds the workers that block all others, from files of torch's flight recorder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from coordinatord.hints.hang_verdict import find_hang
from coordinatord.protocol.exit_codes import ExitCode
from nodeclient.diagnosis.recorder_files import UnreadableDumpError, dumps_in, samples_in
from nodeclient.operate.client import RequestError
from nodeclient.operate.terminal_info import terminal, write

NOBODY = "no rank waits in a collective, so none is named"

NONE_NAMED = 1
"""The exit code if no rank is named."""


def run(folder: Path, *, as_json: bool) -> int:
    """Print the culprits and return the exit code: 0 if there are any. Raises `RequestError`."""
    try:
        dumps, problems = dumps_in(folder)
        seen = samples_in(dumps)
    except UnreadableDumpError as error:
        raise RequestError(str(error), ExitCode.DATA_ERROR) from error
    for problem in problems:
        sys.stderr.write(f"nodeclient: {problem}\n")
    hang = find_hang(seen)
    kind, ranks, sentence = (None, (), NOBODY) if hang is None else (hang.kind, hang.ranks, hang.sentence)
    if as_json:
        write([json.dumps({"kind": kind, "ranks": ranks, "sentence": sentence})])
    else:
        write(terminal().wrapped(sentence if kind is None else f"{kind}: {sentence}", "      "))
    return NONE_NAMED if hang is None else ExitCode.OK
