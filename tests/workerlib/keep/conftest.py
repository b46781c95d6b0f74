"""What several tests of this room begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kept_script import Script


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Start a node for a script in this process."""
    started = Script(tmp_path, monkeypatch)
    yield started
    started.node.close()
