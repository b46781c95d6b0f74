"""`python -m workerlib.store`: a script finds the store as under torchrun's agent, and is as if it had been started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import TIMEOUT_S
from tests.workerlib.test_init import SOLO, _pair, _start, port

__all__ = ["port"]

CONNECT_FIRST = """
import os, sys
import helper
from torch import distributed, ones
print(__name__, __file__ == sys.argv[0], sys.argv[1:])
store = distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
rank = int(os.environ["RANK"])
store.set(str(rank), "here")
print(store.get(str(1 - rank)).decode())
distributed.init_process_group("gloo")
total = ones(1)
distributed.all_reduce(total)
print(int(total))
distributed.destroy_process_group()
"""
"""Connects without having initialised a process group, as torchft's Manager does; and then initialises one."""


@pytest.mark.slow
@pytest.mark.parametrize("by_name", [False, True], ids=["script", "module"])
def test_a_script_that_expects_its_launcher_s_store_finds_it(port: int, tmp_path: Path, by_name: bool) -> None:
    (tmp_path / "helper.py").touch()
    script = tmp_path / "train.py"
    script.write_text(CONNECT_FIRST)
    program = ["-m", "train"] if by_name else [str(script)]
    argv = [sys.executable, "-m", "workerlib.store", *program, "--lr", "1"]
    run = f"import os, sys; os.chdir({str(tmp_path)!r}); os.execv(sys.executable, {argv!r})"
    first, second = _pair(port)
    with _start(run, first) as zero, _start(run, second) as one:
        for process in (zero, one):
            try:
                output, errors = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()
            assert (output, process.returncode) == ("__main__ True ['--lr', '1']\nhere\n2\n", 0), errors


def test_a_call_without_a_program_or_a_launcher_gets_an_error_with_what_to_do() -> None:
    bare = {name: value for name, value in os.environ.items() if name not in SOLO.to_environ()}
    for words, code, said in [([], 64, "usage: python -m workerlib.store"), (["train.py"], 1, "nodeclient join")]:
        command = [sys.executable, "-m", "workerlib.store", *words]
        ended = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
        assert ended.returncode == code
        assert said in ended.stderr
