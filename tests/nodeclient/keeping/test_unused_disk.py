"""A node that was told to write to a disk, and whose workers keep nothing."""

from pathlib import Path

import pytest

from coordinatord.protocol.messages import Ended, Observed, Phase
from tests.nodeclient.keeping.stage import RUN, KeepingNode, keeping_nodes

WORDS = (
    "--persist has had nothing to write: no worker of round {} has called ctx.keep, so a later round begins from the "
    "script's own checkpoint"
)

STEPS = (None, 7)
"""The steps of two workers, of which one has reported a step."""


def end_round(node: KeepingNode, steps: tuple[int | None, ...] = (), ended: tuple[Ended, ...] = ()) -> None:
    """End the present round of a node, whose workers have reported these steps and exits with 0."""
    report = Observed(RUN, node.round, Phase.STOPPED, 1, False, None, 0.0, True, steps=steps, ended=ended)
    node.keeper.warn_of_unused_disk(report)


@pytest.mark.parametrize(("steps", "ended"), [(STEPS, ()), ((), (Ended(0, 0.0),))])
async def test_that_no_worker_keeps_state_is_said_once(
    tmp_path: Path, steps: tuple[int | None, ...], ended: tuple[Ended, ...]
) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path) as [node]:
        for number in (1, 2):
            node.begin(number)
            end_round(node, steps, ended)
        assert node.texts == [WORDS.format(1)]


@pytest.mark.parametrize("steps", [(), (None, None)])
async def test_nothing_is_said_of_a_round_that_ended_while_its_workers_started(
    tmp_path: Path, steps: tuple[int | None, ...]
) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path) as [node]:
        node.begin(1)
        end_round(node, steps)
        assert node.texts == []
        node.begin(2)
        end_round(node, STEPS)
        assert node.texts == [WORDS.format(2)]


async def test_nothing_is_said_if_a_worker_has_asked_for_kept_state_or_there_is_no_disk(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path) as [node]:
        await node.worker(node.begin(1)).resume()
        end_round(node, STEPS)
        assert not [text for text in node.texts if "ctx.keep" in text]
    async with keeping_nodes(tmp_path, "b") as [node]:
        node.begin(1)
        end_round(node, STEPS)
        assert not node.texts
