"""What a module imports only when it is used: to be preloaded with it, or else each worker would import it again."""

from __future__ import annotations

from collections.abc import Sequence

ALONG = {"torch": ("torch._dynamo",)}
"""By the module that is named.

Every optimizer, and DistributedDataParallel, imports torch._dynamo when it is made (torch/_compile.py), which takes as
long as torch itself: 1.2 s for 823 modules (torch 2.13, CPU). After it, what a whole first step imports takes 2 ms.
"""


def along(modules: Sequence[str]) -> tuple[str, ...]:
    """Return the modules that go along with those named."""
    return tuple(late for name in modules for late in ALONG.get(name, ()))
