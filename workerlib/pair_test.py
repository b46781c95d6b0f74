"""The program of a preflight: tests this host together with another one, and prints the figures.

`nodeclient preflight` searches for hosts that are slow, compute wrong values or have a bad link: it tests them in
pairs. Each host multiplies matrices on all of its GPUs, and then both add up a vector over the network.

nodeclient starts this file by its path with the interpreter of the workers, which may lack this package. It prints
lines of JSON with the fields of `PairResult`: one with the matrix product, and one with all figures at the end. So a
test that hangs in its sum still tells the product. From Python 3.10 on.

    python pair_test.py NUMBER RANK ADDRESS PORT WITHIN_S

NUMBER is that of the test, RANK is 0 or 1, and rank 0 serves torch's store at ADDRESS and PORT.

All values are small whole numbers. Floats hold their products and sums exactly, in whatever order they are added, so
the right result is known to the last bit on any hardware, with TF32 too.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import time
from datetime import timedelta
from typing import Any

SEED = 20_261_128
"""Any number: it makes the matrices the same on each run."""

LARGEST = 8
"""The limit of the matrices' values: a sum of 4,096 products stays far below 2**24, up to which floats are exact."""

SIZE_CPU, SIZE_GPU = 512, 4096
"""The rows of a matrix. A product takes some ms on one core, and a third of a ms on an H100."""

BYTES_CPU, BYTES_GPU = 4 << 20, 64 << 20
"""The size of the vector for the sum. It takes 34 ms through 1 Gbit/s, and some ms through the network of GPUs."""

PRODUCTS_S = 0.5
"""The time for all products, which the GPUs share, one after the other. The best product counts: other programs disturb
it little."""

SUMS = 10
"""How often the sum is repeated; the best one counts here too."""

TEXT_MAX = 200
"""The limit of a text of the result in characters."""

MARGIN_S = 1.0
"""How long before the end of its time the program gives up its partner, so that it can still report that."""


def measure_products(torch: Any, devices: list[Any]) -> tuple[float, bool]:
    """Return the speed of a matrix product in GFLOP/s on the slowest device, and whether each one was right."""
    size = SIZE_GPU if devices[0].type == "cuda" else SIZE_CPU
    drawn = torch.Generator().manual_seed(SEED)

    def draw(*shape: int) -> Any:
        return torch.randint(-LARGEST, LARGEST, shape, generator=drawn).double()

    left, right, probe = draw(size, size), draw(size, size), 2 * draw(size) + 1
    # The product is checked by multiplying it with a vector, which the CPU can do in time. The vector has no zero, so a
    # single wrong value always shows.
    expected = left @ (right @ probe)
    factors, seconds = (left.float(), right.float()), PRODUCTS_S / len(devices)
    measured = [_measure_product(torch, device, factors, probe, expected, seconds) for device in devices]
    return min(gflops for gflops, _ in measured), all(is_right for _, is_right in measured)


def _measure_product(
    torch: Any, device: Any, factors: tuple[Any, Any], probe: Any, expected: Any, seconds: float
) -> tuple[float, bool]:
    left, right = (factor.to(device) for factor in factors)
    first = left @ right  # it loads code, so it is not timed
    is_right = torch.equal(first.cpu().double() @ probe, expected)
    took_s, until = list[float](), time.monotonic() + seconds
    while not took_s or time.monotonic() < until:
        _synchronize(torch, device)
        began = time.perf_counter()
        product = left @ right
        _synchronize(torch, device)
        took_s.append(time.perf_counter() - began)
        is_right = is_right and torch.equal(product, first)
    return 2e-9 * len(probe) ** 3 / min(took_s), is_right


def _synchronize(torch: Any, device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_sum(torch: Any, store: Any, rank: int, deadline: float) -> float:
    """Return the speed of a sum over both nodes in MB/s, by the monotonic time `deadline`.

    Raises `ValueError` if the sum is wrong, which may not be this node's fault, so it is not `PairResult.wrong`.
    """
    dist, gpu = torch.distributed, str(_gpu_id(torch))
    store.set_timeout(_left(deadline))
    store.set(f"gpu{rank}", gpu)
    other = store.get(f"gpu{1 - rank}").decode()
    backend = "nccl" if "" not in {gpu, other} and gpu != other else "gloo"  # NCCL refuses two ranks on one GPU
    device = torch.device("cuda" if backend == "nccl" else "cpu")
    dist.init_process_group(backend, store=store, rank=rank, world_size=2, timeout=_left(deadline))
    count = (BYTES_GPU if backend == "nccl" else BYTES_CPU) // 4
    own = (torch.arange(count, device=device) % 1000).float() * (rank + 1)
    expected, best_s = own / (rank + 1) * 3, math.inf  # 3 is the sum of both factors, 1 and 2
    for number in range(SUMS + 1):
        total = own.clone()
        _synchronize(torch, device)
        began = time.perf_counter()
        dist.all_reduce(total)
        _synchronize(torch, device)
        if number:  # the first one connects
            best_s = min(best_s, time.perf_counter() - began)
        if not torch.equal(total, expected):
            raise ValueError("the sum over both nodes is wrong")
    return 4e-6 * count / best_s


def _left(until: float) -> timedelta:
    """Return the time left, and at least `MARGIN_S`: if less is left, nodeclient ends this program soon."""
    return timedelta(seconds=max(MARGIN_S, until - time.monotonic()))


def _gpu_id(torch: Any) -> str:
    """Return what tells the first GPU from all others; empty without one."""
    if not torch.cuda.is_available():
        return ""
    properties = torch.cuda.get_device_properties(0)
    return str(getattr(properties, "uuid", f"{os.uname().nodename} {properties.name}"))


def run(number: int, rank: int, address: str, port: int, within_s: float) -> dict[str, object]:
    """Run a test, and return the figures; `text` says why one is missing."""
    deadline = time.monotonic() + within_s - MARGIN_S
    result: dict[str, object] = {"number": number, "gflops": None, "mb_s": None, "wrong": False, "text": "", "gpu": ""}
    try:
        import torch  # noqa: PLC0415 - the host may have none

        torch.set_num_threads(1)  # nodes of one host share its cores
        torch.backends.cuda.matmul.allow_tf32 = True
        gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
        result["gpu"] = torch.cuda.get_device_name(0)[:TEXT_MAX] if gpus else ""
        devices = gpus or [torch.device("cpu")]
        result["gflops"], is_right = measure_products(torch, devices)
        result["wrong"] = not is_right
        _print(result)
        dist: Any = torch.distributed
        # With the prefix, no keys of an earlier test at the same port are taken for those of this one.
        store = dist.PrefixStore(str(number), dist.TCPStore(address, port, 2, rank == 0, _left(deadline)))
        result["mb_s"] = measure_sum(torch, store, rank, deadline)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is the finding
        first_line = "".join(filter(str.isprintable, next(iter(str(error).splitlines()), "")))
        result["text"] = f"{type(error).__name__}: {first_line[:TEXT_MAX]}"
    return result


def _print(result: dict[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(result)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    gc.disable()  # importing torch leaves no garbage, and the search for it takes a sixth of the import's time
    if not getattr(sys.flags, "safe_path", False):  # -P or PYTHONSAFEPATH, from Python 3.11 on
        del sys.path[0]  # the folder of this file, whose modules would hide others of the same names
    number, rank, address, port, within_s = sys.argv[1:]
    _print(run(int(number), int(rank), address, int(port), float(within_s)))
    os._exit(0)  # the threads of gloo and NCCL may not end
