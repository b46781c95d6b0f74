"""Runs an example at no more than a hundred steps a second, whatever the machine: `paced.py SCRIPT ARGUMENTS...`.

Coordinators see steps a heartbeat late, so a training without a pace may be over before a test can disturb it.
"""

import runpy
import sys
import time
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

STEP_S = 0.01


def rest(*_: Any) -> None:
    """Make the step that was just done long enough."""
    time.sleep(STEP_S)  # noqa: TID251 - it is the pace of the training, nothing waits for it


if __name__ == "__main__":
    register_optimizer_step_post_hook(rest)
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")
