"""Limits that a busy machine does not reach: what they are for has tests of its own, which set them."""

import pytest

from nodeclient.output import file_thread, output, pump
from tests.support.programs import TIMEOUT_S


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the threads of an output, and for whoever reads a terminal."""
    monkeypatch.setattr(output, "ANSWER_WITHIN_S", TIMEOUT_S)
    monkeypatch.setattr(pump, "FLUSH_WITHIN_S", TIMEOUT_S)
    monkeypatch.setattr(file_thread, "END_WITHIN_S", TIMEOUT_S)
    monkeypatch.setattr(file_thread, "HANGS_AFTER_S", TIMEOUT_S)
