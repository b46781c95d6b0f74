"""The smallest example runs under whatever starts it, as it is."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.programs import BIN, Program

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "ddp.py"

TWO = ("--nproc-per-node", "2")

LAUNCHERS = {
    "nodeclient join": (BIN / "nodeclient", "join", "--standalone", *TWO, "--", sys.executable, SCRIPT),
    "nodeclient launch": (BIN / "nodeclient", "launch", "--standalone", *TWO, SCRIPT),
    "torchrun": (sys.executable, "-m", "torch.distributed.run", "--standalone", *TWO, SCRIPT),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "flags"),
    [
        ("nodeclient join", ("--local_rank=0", "--local-rank=0")),  # as older launchers spell it, and newer ones
        pytest.param("nodeclient launch", (), marks=pytest.mark.long),
        pytest.param("torchrun", (), marks=pytest.mark.long),
    ],
    ids=LAUNCHERS,
)
def test_two_workers_learn_together(launcher: str, flags: tuple[str, ...]) -> None:
    with Program(*LAUNCHERS[launcher], *flags) as program:
        assert program.wait() == 0, program.output
        program.await_no_leftovers()
    said = program.output
    # Two workers under torchrun write to one pipe, so their lines may get mixed up.
    assert sorted(re.findall(r"rank (\d) of 2 on (?:cpu|cuda)", said)) == ["0", "1"]
    losses = [float(loss) for loss in re.findall(r"step \d+0 loss ([0-9.]+)$", said, re.MULTILINE)]
    assert len(losses) == 5, "only rank 0 speaks"
    assert losses[0] > losses[-1]
    assert losses[-1] < 0.001
    assert re.search(r"learned y = 3.00x \+ 2.00$", said, re.MULTILINE)
