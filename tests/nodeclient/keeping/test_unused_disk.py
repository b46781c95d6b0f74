"""A node that was told to write to a disk, and whose workers keep nothing."""

from pathlib import Path

from nodeclient.core.effects import Restore
from tests.nodeclient.keeping.stage import RUN, keeping_nodes

WORDS = (
    "--persist has had nothing to write: no worker of round {} has called ctx.keep, so the next round begins from the "
    "script's own checkpoint"
)


async def test_that_no_worker_keeps_state_is_said_once(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path) as [node]:
        for number in (1, 2):
            node.begin(number)
            await node.keeper.end_round()
        assert [text for text in node.texts if "ctx.keep" in text] == [WORDS.format(1)]


async def test_nothing_is_said_if_a_worker_has_asked_for_kept_state_or_there_is_no_disk(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path) as [node]:
        await node.worker(node.begin(1)).resume()
        await node.keeper.end_round()
        node.begin(2)  # its workers may have been killed while they started
        await node.keeper.end_round()
        assert not [text for text in node.texts if "ctx.keep" in text]
    async with keeping_nodes(tmp_path, "b") as [node]:
        node.begin(1)
        await node.keeper.end_round()
        assert not node.texts


async def test_nothing_is_said_of_a_round_whose_workers_were_not_started(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path) as [node]:
        node.keeper.carry_out(Restore(RUN, 1, None))
        await node.keeper.end_round()
        assert not node.texts
