"""Tells from the stack of a worker that hung whether its host may be the cause, or only the script. Pure.

A host is charged with a hang that the script has caused only where rounds can do without the host.
"""

from __future__ import annotations

import re

from coordinatord.protocol.messages import Failure
from coordinatord.protocol.stack_messages import ELLIPSIS

_MODULE = re.compile(r".* \((\w+)(?:/.*|\.py):\d+\)")
"""A frame, with the name of the package or the module. Libraries' paths begin at the package. Other files,
such as the script, mostly have absolute paths, which do not match: they are none of `_USES_DEVICES`."""

_USES_DEVICES = frozenset({"apex", "cupy", "deepspeed", "torch", "transformer_engine", "triton"})
"""The packages whose native code waits for GPUs and the network."""

_WAITS = frozenset({"concurrent", "multiprocessing", "queue", "selectors", "threading"})
"""The modules of Python in which other code waits, such as torch's DataLoader for its processes. Their frames do
not show why, so the code that called them is judged."""


def may_be_of_host(failure: Failure) -> bool:
    """Whether a worker that hung may stand still because of its host.

    It may if it waits for a disk, if native code of torch or the like has not returned, or if its stack is not known.
    Python code of the script that waits or loops would do so on any other host. The frames are innermost first, so the
    worker stands in the first one outside of `_WAITS`.
    """
    if not failure.last_lines or " for a disk" in failure.message:
        return True
    matches = (_MODULE.fullmatch(frame) for frame in failure.last_lines if frame != ELLIPSIS)
    modules = (match[1] if match else "" for match in matches)
    return next((module for module in modules if module not in _WAITS), "") in _USES_DEVICES
