"""What tests have a node write to a disk, and what it reports of that."""

import torch
from msgspec.structs import replace

from coordinatord.protocol.kept_state import DiskStep, PersistOrder, PersistReport, PersistState, Resume, WantedParts
from nodeclient.core.effects import Persist
from tests.nodeclient.keeping.stage import RUN, KeepingNode, KeepingWorker, a_resume, wanted
from tests.support.kept_places import big_bytes, small_bytes, whole

BIG = big_bytes(whole({"model.weight": torch.arange(100_000.0)}))

SMALL = small_bytes({"model.mean": torch.ones(2)}, {"tokens": 7})

PART = WantedParts(0, 1, big=True, small=True)


def an_order(step: int = 4, *, commit: bool = False, parts: WantedParts = PART) -> PersistOrder:
    """Return what the coordinator tells the only node that writes a step."""
    return PersistOrder(1, step, 1, 1, (parts,), commit)


def from_disk(node: KeepingNode) -> Resume:
    """Return what the first round of another run resumes from: step 4, which a node finds on the disk."""
    return replace(a_resume(0, 4, node.source(wanted())), redone=None, disk=DiskStep(RUN, 1))


async def train(node: KeepingNode, *steps: int, run: str = RUN) -> KeepingWorker:
    """Keep steps of the first round of a lone worker."""
    worker = node.worker(node.begin(1, run=run))
    await worker.reserve(len(BIG), len(SMALL))
    for step in steps:
        worker.save(step, BIG, SMALL)
    return worker


def report(node: KeepingNode, run: str = RUN) -> PersistReport | None:
    holding = node.holding(workers=True, run=run)
    return None if holding is None else holding.persisting


async def write(node: KeepingNode, order: PersistOrder, run: str = RUN) -> PersistReport:
    """Have a node carry out an order; return what comes of it."""
    node.keeper.carry_out(Persist(run, order))
    ends = {PersistState.FAILED, PersistState.COMMITTED if order.commit else PersistState.WRITTEN}
    await node.until(lambda: (found := report(node, run)) is not None and found.state in ends)
    found = report(node, run)
    assert found is not None
    return found
