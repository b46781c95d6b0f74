"""Three ranks of gloo, of which the last is stopped: the others get out of the collective, and make another group.

Each of the others prints its error and its later sum, as one line of JSON.
"""

import json
import os
import signal
import sys
import tempfile
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from workerlib.reuse.group_sockets import GroupSockets

RANKS = 3


def stopped(pid: int) -> bool:
    """Whether the kernel has stopped a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def take_part(rank: int, folder: str) -> None:
    """Be one of the ranks; each is a process of its own."""
    torch.set_num_threads(1)
    store, sockets = FileStore(f"{folder}/first", RANKS), GroupSockets()
    with sockets.gathering():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(minutes=10))
    dist.all_reduce(torch.ones(1))
    if rank == RANKS - 1:
        store.set("last", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    last = int(store.get("last"))
    threading.Thread(target=end_the_wait, args=(last, sockets), daemon=True).start()
    error = ""
    while not error:
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as met:
            error = str(met)
    dist.destroy_process_group()
    second = FileStore(f"{folder}/second", RANKS - 1)
    dist.init_process_group("gloo", store=second, rank=rank, world_size=RANKS - 1)
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    os.write(1, f"{json.dumps({'rank': rank, 'error': error, 'sum': total.item()})}\n".encode())


def end_the_wait(last: int, sockets: GroupSockets) -> None:
    """Shut the connections of this rank when the last one is stopped: from then on it may wait for that one."""
    idle = threading.Event()
    while not stopped(last):
        idle.wait(0.001)
    sockets.shut()


def main() -> int:
    """Start the ranks, and end the one that is stopped when the others are done; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in range(RANKS):
            pid = os.fork()
            if pid == 0:
                take_part(rank, folder)
                os._exit(0)
            pids.append(pid)
        codes = [os.waitpid(pid, 0)[1] for pid in pids[:-1]]
        os.kill(pids[-1], signal.SIGKILL)
        os.waitpid(pids[-1], 0)
        return max(codes)


if __name__ == "__main__":
    sys.exit(main())
