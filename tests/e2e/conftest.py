"""Fixtures of the end-to-end tests: all is as it is by default, encrypted and for those with a token."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Coordinator
from tests.support.fixtures import cluster, own_coordinator, serving
from tests.support.programs import USER_HOME

__all__ = ["cluster", "own_coordinator"]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what the user of all these tests has as XDG_CONFIG_HOME."""
    return tmp_path_factory.mktemp("user")


@pytest.fixture(autouse=True)
def _as_by_default(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(USER_HOME, str(home))


@pytest.fixture(scope="session")
def coordinator(home: Path) -> Iterator[Coordinator]:
    """Yield one coordinatord for all jobs of this user."""
    yield from serving(home=home)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[int, str]]:
    """Return the digests of a training that nothing happens to, by rank and step."""
    from tests.support.undisturbed import STEPS, WORLD_SIZE, train_undisturbed  # noqa: PLC0415 - it imports torch

    return train_undisturbed(tmp_path_factory.mktemp("undisturbed"), WORLD_SIZE, STEPS)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Return the folder into which workers write what they did."""
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder
