"""Skips tests of what only later releases of torch have."""

from pkgutil import resolve_name

import pytest


def skip_without(name: str) -> None:
    """Skip a test where torch lacks a name, such as `torch.distributed.fsdp:fully_shard`."""
    try:
        resolve_name(name)
    except AttributeError:
        pytest.skip(f"this torch has no {name}")
