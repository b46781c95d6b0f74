"""Serves the store at MASTER_ADDR:MASTER_PORT for scripts that expect their launcher to: `python -m workerlib.store`.

torchrun's agent serves it. Here rank 0 does so in `init_process_group`; a script that connects without having called
that, as torchft's `Manager` does, would wait for ever. Started by this module it is served before the script begins:

    nodeclient join --coord HOST --job-id mnist -- python -m workerlib.store train.py --lr 0.1

In rank 0's process the store is a thread of native code, so it ends with the round, and each round has a new one.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from workerlib.env import NotLaunchedError, WorkerEnvironment

USAGE_ERROR = 64
"""The value of EX_USAGE in sysexits.h, with which nodeclient exits if its own arguments are wrong."""


def main() -> None:
    """Serve the store if this is rank 0, and then run the script, or with `-m` the module, that is named."""
    words = sys.argv[1:]
    by_name = words[:1] == ["-m"]
    if len(words) <= by_name:
        sys.stderr.write("usage: python -m workerlib.store [-m] PROGRAM [ARGUMENT ...], by a launcher\n")
        sys.exit(USAGE_ERROR)
    try:
        environment = WorkerEnvironment.from_environ(os.environ)
    except NotLaunchedError as error:
        sys.exit(f"workerlib.store: {error}")
    # The store ends with its last reference, so it is kept until the script is over.
    store = _serve(environment)
    sys.argv = words[by_name:]
    if by_name:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
    del store


def _serve(environment: WorkerEnvironment) -> object:
    """Return the object that keeps the store alive; None if another process serves it.

    Raises the errors of `TCPStore`.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):  # torchrun's agent serves it
        return None
    # `init_process_group` then connects, in rank 0 too, under a prefix for each restart.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)
    if environment.rank > 0:
        return None
    import torch.distributed  # noqa: PLC0415  # in the other workers the script may import it when it likes

    address, port = environment.master_address, environment.master_port
    return torch.distributed.TCPStore(address, port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]  # public all the same


if __name__ == "__main__":
    main()
