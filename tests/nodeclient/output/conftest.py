"""Limits that a busy machine does not reach, for which tests of their own set others; and a place to wait at."""

from pathlib import Path

import pytest

from nodeclient.output import file_thread, output, pump
from tests.nodeclient.output.stage import Gate
from tests.support.programs import TIMEOUT_S


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the threads of an output, and for whoever reads a terminal."""
    monkeypatch.setattr(output, "ANSWER_WITHIN_S", TIMEOUT_S)
    monkeypatch.setattr(pump, "FLUSH_WITHIN_S", TIMEOUT_S)
    monkeypatch.setattr(file_thread, "END_WITHIN_S", TIMEOUT_S)
    monkeypatch.setattr(file_thread, "HANGS_AFTER_S", TIMEOUT_S)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")
