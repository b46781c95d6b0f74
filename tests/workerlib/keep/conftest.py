"""What several tests of this room begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.support.kept_script import Script


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Start a node for a script in this process."""
    started = Script(tmp_path, monkeypatch)
    yield started
    started.node.close()


@pytest.fixture
def group() -> Iterator[None]:
    """Have a process group of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
