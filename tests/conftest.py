"""What all tests share: the option to write expected texts anew."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rewrite`."""
    parser.addoption("--rewrite", action="store_true", help="write golden transcripts and printed tables anew")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether expected texts are to be written anew instead of compared."""
    return bool(request.config.getoption("--rewrite"))
