"""Two coordinators over a modelled etcd, whose requests are lost or late at any point: nothing that was said is lost.

Each mutant leaves out one thing that this rests on, and must break an invariant.
"""

from collections.abc import Callable
from typing import Any

import pytest

from coordinatord.store.etcd import history
from coordinatord.store.etcd.history import History
from coordinatord.store.etcd.requests import Body, created_at
from coordinatord.store.interface import StoreError
from tests.support.modelled_etcd import World

SEEDS = 50

STEPS = 300


def play(seeds: int = SEEDS) -> int:
    """Play so many histories; return how many takeovers there were."""
    takeovers = 0
    for seed in range(seeds):
        world = World(seed)
        world.run(STEPS)
        takeovers += world.takeovers
    return takeovers


@pytest.fixture(autouse=True)
def _merge_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have values merged after a few commits."""
    monkeypatch.setattr("coordinatord.store.etcd.commit_log.WASTE_ROWS", 0)
    monkeypatch.setattr("coordinatord.store.etcd.commit_log.MERGED_VALUES_MAX", 5)


@pytest.mark.slow
def test_nothing_that_was_said_is_lost_or_said_differently() -> None:
    assert play() > SEEDS, "leaders follow each other"


def _holds_always(key: bytes, revision: int) -> Body:
    del revision
    return {**created_at(key, 0), "target": "CREATE", "key": created_at(b"nothing", 0)["key"]}


def _no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out that the leader key is the own one."""
    monkeypatch.setattr(history, "created_at", _holds_always)


def _no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out that nobody has written since."""
    monkeypatch.setattr(history, "written_at", _holds_always)


def _writes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speak before the commit is durable: take every try for done."""
    commit = History.commit

    async def hasty(self: History, rows: Any, dropped: Any) -> None:
        head, revision = self._head, self._head_revision
        try:
            await commit(self, rows, dropped)
        except StoreError:
            self._head, self._head_revision = head, revision

    monkeypatch.setattr(History, "commit", hasty)


def _believes_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the lease for the own one for ever: pass over that another coordinator leads."""

    async def sure(self: History, demands: list[Body], ops: list[Body], otherwise: list[Body]) -> Any:
        del demands, otherwise
        return await self._gateway.call("/v3/kv/txn", {"compare": [], "success": ops, "failure": []})

    monkeypatch.setattr(History, "_try", sure)


@pytest.mark.parametrize("mutate", [_no_fence, _no_head, _writes_first, _believes_its_clock])
def test_each_mutant_breaks_an_invariant(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match=r"was shown|different records|does not lead"):
        play(600)
