"""A training script that ends while gloo's thread still wants the interpreter, as happens by chance now and then."""

import pytest

BUSY_AT_THE_END = '''
import sys, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def be_busy_at_the_end():
    """Return a model that keeps the process group alive; its end waits for gloo's thread."""
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["begun"])
        dist.all_reduce(torch.ones(1))
    else:
        sys.setswitchinterval(1000)  # nobody else gets the interpreter, unless this thread waits for something
        torch._C._stash_obj_in_tls("context", object())  # as each backward pass does
        dist.all_reduce(torch.ones(1), async_op=True)
        torch._C._remove_obj_from_tls("context")
        store.set("begun", "")
        until = time.monotonic() + 0.3
        while time.monotonic() < until: pass
    return model
'''
"""A worker that has a group of two hangs after this for ever, if `workerlib/gloo.py` does nothing about it."""


def skip_where_gloo_needs_no_python() -> None:
    """Skip a test that has gloo's threads keep an object of Python's, which none do in torch 2.4."""
    if not hasattr(pytest.importorskip("torch")._C, "_remove_obj_from_tls"):
        pytest.skip("gloo's threads keep nothing of Python's in this torch")
