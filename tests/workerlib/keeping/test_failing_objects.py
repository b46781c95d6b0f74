"""Objects whose own functions fail: the error names them, and training goes on where it can."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nodeclient.diagnosis.error_file import read_error_file
from tests.support.kept_script import Objects, Script, do_steps, network, train
from tests.support.programs import TIMEOUT_S

pytestmark = pytest.mark.slow


class Failing:
    """Something whose state cannot be had any more."""

    saves = True

    def state_dict(self) -> Objects:
        """Return it, or fail."""
        if not self.saves:
            raise ValueError("the file is closed")
        return {"position": 1}

    def load_state_dict(self, _: Objects) -> None:
        """Go on at the position."""


def test_an_object_that_fails_to_say_its_state_is_not_the_end_of_training(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    model, failing = network(), Failing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with script.runs({"model": model, "optimizer": optimizer, "file": failing}) as (_, kept):
        do_steps(kept, model, optimizer)
        failing.saves = False
        for step in (3, 4):
            train(model, optimizer)
            kept.step(step)
        assert script.not_saved(kept).startswith(why := "file cannot be kept: its state_dict() has failed: ValueError(")
    assert caplog.text.count(why) == 1


PROGRAM = """
import sys, types
from tests.workerlib.keeping.test_failing_objects import Failing
from workerlib.keeping.keeper import keep
Failing.saves = False
keep(types.SimpleNamespace(world_size=1), {"file": Failing() if sys.argv[1] == "failing" else object()})
"""


@pytest.mark.parametrize(("kept", "final"), [("failing", None), ("object", True)])
def test_an_object_that_fails_may_do_better_in_another_round(kept: str, final: object, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    environ = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM, kept], env=environ, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 1
    found = read_error_file(path)
    assert (found and found.final) is final
