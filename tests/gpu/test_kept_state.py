"""How state is saved from a GPU: beside a training that is stuck, and not at all once an error has spoilt the context.

What a worker makes of the answers is tested without a GPU, in `tests/workerlib/keeping/test_gate.py`.
"""

import subprocess
import sys

import pytest

from nodeclient.host.devices import Gpu
from tests.gpu.conftest import WITHIN_S
from tests.support.programs import clean_environ

pytestmark = pytest.mark.slow

BESIDE = """
import torch
from workerlib.keeping.gate import DeviceQueue
from workerlib.keeping.gate import Gate

of, to = torch.arange(1_000.0, device="cuda"), torch.zeros(1_000)
order = DeviceQueue(of.device)
gate = Gate(order, has_peers=False)
gate.record_end()
assert gate.await_end(60), "the end of the step is not seen"
torch.cuda._sleep(20_000_000_000)  # some ten seconds, as a collective that hangs
order.copy([to], [of], [0])
assert to.tolist() == list(range(1_000)), "something else was copied"
assert not torch.cuda.current_stream().query(), "the copy waited for what training does"
gate.record_end()
assert not gate.await_end(0.05), "a step that is on is said to have ended"
"""

SPOILT = """
import torch
from workerlib.keeping.gate import DeviceQueue
from workerlib.keeping.gate import Gate

few = torch.zeros(1, device="cuda")
order = DeviceQueue(few.device)
few[torch.tensor([5], device="cuda")]  # a place that is not there: each later call fails
try:
    gate = Gate(order, has_peers=False)
    gate.record_end()
    gate.await_end(60)
except RuntimeError:
    raise SystemExit(0)
raise SystemExit("the context is said to be in order")
"""

LOCKED = """
import mmap, os, time, torch
from workerlib.keeping.gate import DeviceQueue
from workerlib.keeping.page_locking import PIECE_BYTES

def fastest(copy):
    taken = []
    for _ in range(5):
        torch.cuda.synchronize()
        began_at = time.monotonic()
        copy()
        torch.cuda.synchronize()
        taken.append(time.monotonic() - began_at)
    return min(taken)

length, offset = 8 * PIECE_BYTES, 64
of = torch.arange(length // 8, device="cuda")
file = os.memfd_create("kept")
os.ftruncate(file, length + 2 * 4096)
memory = memoryview(mmap.mmap(file, length + 2 * 4096))
to = torch.frombuffer(memory, dtype=torch.int64, count=length // 8, offset=offset)
order, told = DeviceQueue(of.device), []
order.lock_pages([memory], told.append)
assert order._page_locks._is_ready.wait(60) and not told, told
pinned = torch.empty(length // 8, dtype=torch.int64, pin_memory=True)
bare, own = fastest(lambda: pinned.copy_(of)), fastest(lambda: order.copy([to], [of], [offset]))
print(f"{length / own / 1e9:.1f} GB/s, a bare copy {length / bare / 1e9:.1f} GB/s")
assert torch.equal(to, of.cpu()), "something else was copied"
assert own < bare / 0.8
turned = of.view(4096, -1).t()
order.copy([to.view(turned.shape)], [turned], [offset])  # it allocates memory of the GPU, which waits for all work
assert torch.equal(to.view(turned.shape), turned.cpu()), "something else was copied"
to.zero_()
torch.cuda._sleep(20_000_000_000)  # some ten seconds, as a collective that hangs
order.copy([to.view(turned.shape)], [turned], [offset])
assert not torch.cuda.current_stream().query(), "the copy waited for what training does"
assert torch.equal(to.view(turned.shape), turned.cpu()), "something else was copied"
"""

AMONG_VALUES = """
import torch
from workerlib.keeping.plain_values import from_plain, to_plain

kept = to_plain([torch.arange(3, device="cuda"), torch.arange(3)], "value")
assert [tensor.device.type for tensor in from_plain(kept)] == ["cuda", "cpu"]
"""


def run_program(program: str) -> str:
    """Run a program that fails an assertion if something is wrong; return its output."""
    command = (sys.executable, "-c", program)
    ended = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("program", [BESIDE, SPOILT], ids=["beside", "spoilt"])
def test_a_save_is_made_beside_training_or_refused(program: str, gpus: list[Gpu]) -> None:
    del gpus
    run_program(program)


def test_a_save_runs_at_the_speed_of_the_bus(gpus: list[Gpu], capsys: pytest.CaptureFixture[str]) -> None:
    del gpus
    with capsys.disabled():
        sys.stdout.write(run_program(LOCKED))


def test_small_tensors_come_back_on_the_gpu_that_they_were_on(gpus: list[Gpu]) -> None:
    del gpus
    run_program(AMONG_VALUES)
