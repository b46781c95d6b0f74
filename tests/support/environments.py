"""The environment of a worker, for tests that need no torch."""

from workerlib.contract.env import WorkerEnvironment


def environment(rank: int, world_size: int, round_: int, port: int) -> WorkerEnvironment:
    """Return the environment of the one worker of a node.

    It names no other node, so that each step may be saved: several nodes have to agree, and save more rarely.
    """
    return WorkerEnvironment(
        rank=rank,
        local_rank=0,
        world_size=world_size,
        local_world_size=1,
        group_rank=rank,
        group_world_size=1,
        role="default",
        role_rank=rank,
        role_world_size=world_size,
        master_address="127.0.0.1",
        master_port=port,
        restart_count=0,
        max_restarts=0,
        job="kept",
        run="only",
        round=round_,
        node=f"node-{rank}",
        worker=0,
        reason="",
    )
