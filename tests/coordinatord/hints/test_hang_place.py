"""Whether a hang may be the host's, by stacks of real workers."""

import pytest

from coordinatord.hints.hang_place import may_be_of_host
from coordinatord.protocol.messages import HangKind
from tests.support.builders import a_failure

OUTER = ("main (train.py:60)", "<module> (train.py:70)")

SCRIPT = {
    "a sleep, a loop or a lock": ("step (train.py:9)",),
    "a module's forward": ("forward (model.py:19)", "_call_impl (torch/nn/modules/module.py:1789)"),
    "a data set": ("__getitem__ (data.py:8)", "fetch (torch/utils/data/_utils/fetch.py:54)"),
    "a queue": ("wait (threading.py:327)", "get (queue.py:171)", "gets (train.py:14)"),
    "an event": ("wait (threading.py:327)", "wait (threading.py:629)", "waits (/opt/src/train.py:21)"),
    "a pipe": ("_recv (multiprocessing/connection.py:395)", "recv (multiprocessing/connection.py:250)"),
    "another library": ("fit (lightning/pytorch/loops/fit_loop.py:208)",),
}

HOST = {
    "a collective": ("wait (torch/distributed/distributed_c10d.py:3252)",),
    "a GPU": ("synchronize (torch/cuda/__init__.py:1083)",),
    "a kernel": ("run (triton/runtime/jit.py:700)",),
    "a data loader": (
        "select (selectors.py:415)",
        "poll (multiprocessing/connection.py:257)",
        "get (multiprocessing/queues.py:113)",
        "...",
        "__next__ (torch/utils/data/dataloader.py:725)",
    ),
}


@pytest.mark.parametrize("frames", SCRIPT.values(), ids=SCRIPT)
def test_code_of_the_script_is_the_same_on_any_host(frames: tuple[str, ...]) -> None:
    assert not may_be_of_host(a_failure(hang=HangKind.STUCK, last_lines=(*frames, *OUTER)))


@pytest.mark.parametrize("frames", HOST.values(), ids=HOST)
def test_native_code_may_wait_for_a_device(frames: tuple[str, ...]) -> None:
    assert may_be_of_host(a_failure(hang=HangKind.STUCK, last_lines=(*frames, *OUTER)))


def test_a_disk_is_the_hosts_and_so_may_be_what_is_not_seen() -> None:
    message = "rank 5 on node gpu1 waits for a disk in save (train.py:70) for 600 s"
    assert may_be_of_host(a_failure(hang=HangKind.STUCK, message=message, last_lines=("save (train.py:70)", *OUTER)))
    assert may_be_of_host(a_failure(hang=HangKind.ABSENT))
