"""What several tests of this room begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.keeping import Keep
    from tests.support.kept_script import Script


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Start a node for a script in this process."""
    from tests.support.kept_script import Script  # noqa: PLC0415 - imports torch, which quick tests do without

    started = Script(tmp_path, monkeypatch)
    yield started
    started.node.close()


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Keep]:
    """Have three nodes; a round may have fewer workers."""
    from tests.support.keeping import Keep  # noqa: PLC0415 - as above

    nodes = Keep(tmp_path, 3)
    yield nodes
    nodes.close()


@pytest.fixture
def group() -> Iterator[None]:
    """Have a process group of this process alone."""
    import torch.distributed as dist  # noqa: PLC0415 - as above
    from torch._C._distributed_c10d import HashStore  # noqa: PLC0415

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
