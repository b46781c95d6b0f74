"""Finds the line of a script at which a stack stands: the innermost one that is the script's own, not a library's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from coordinatord.protocol.stack_messages import ELLIPSIS

Frame = tuple[str, str, str]
"""A function, its file and a line."""

_RUNNER = re.compile(r"<frozen runpy>|(?:.*/)?runpy\.py|(?:.*/)?nodeclient/forkserver/.*")
"""The files that run a script. A folder of the user's may be called nodeclient, too."""

_GO_BETWEEN = re.compile(r"(?:.*\.)?(?:wrapper|decorate_context|_wrapped_call_impl|_call_impl)")
"""Functions that only call another one: those of torch's decorators, and those that call the forward of a module."""


def find_place(frames: Sequence[Frame]) -> Frame | None:
    """Return the function that the script has called, with the file and the line of the call; None without a frame.

    The innermost frame comes first. The script's own files are the one that was started, and those beside it or in
    folders beside it. If no frame is in one of these files, the innermost frame is returned.
    """
    script = _find_script(frames)
    folder = script.rpartition("/")[0]
    for at, (name, file, line) in enumerate(frames):
        if script and (file == script or (folder and file.startswith(f"{folder}/"))):
            called = [function for function, _, _ in reversed(frames[:at]) if function != ELLIPSIS]
            telling = (function for function in called if not _GO_BETWEEN.fullmatch(function))
            return next(telling, called[0] if called else name), file, line
    return frames[0] if frames else None


def _find_script(frames: Sequence[Frame]) -> str:
    """Return the file of the script: it was started, or another program runs it. Empty if it is not known."""
    for at, (name, file, _) in enumerate(frames):
        is_outermost = at == len(frames) - 1 or _runs_scripts(frames[at + 1][1])
        if name == "<module>" and is_outermost and not _runs_scripts(file):
            return file
    return ""


def _runs_scripts(file: str) -> bool:
    return _RUNNER.fullmatch(file) is not None
