"""A training script for torchrun that fails in each of its first rounds: what `--max-restarts` is for.

All ranks add up what each contributes, by gloo; then one of them dies, another one in each round, as long as the round
is at most the number in its first argument.
"""

import json
import os
import sys

import torch
import torch.distributed as dist


def main() -> None:
    """Take part in one round."""
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    number, rank = int(os.environ["COORDINATORD_ROUND"]), dist.get_rank()
    event = {"event": "sum", "round": number, "rank": rank, "sum": int(total.item())}
    os.write(1, f"{json.dumps(event)}\n".encode())
    dist.all_reduce(total)  # all have written theirs
    if number <= int(sys.argv[1]) and rank == number % dist.get_world_size():
        os._exit(17)
    dist.all_reduce(total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
