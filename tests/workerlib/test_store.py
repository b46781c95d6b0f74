"""`python -m workerlib.store`: a script finds the store as under torchrun's agent, and is as if it had been started."""

import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import TIMEOUT_S
from tests.workerlib.test_init import SOLO, _pair, _start, port
from workerlib import store
from workerlib.contract.env import STACKS

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
@pytest.mark.parametrize("by_name", [False, pytest.param(True, marks=pytest.mark.long)], ids=["script", "module"])
def test_a_script_that_expects_its_launcher_s_store_finds_it(port: int, tmp_path: Path, by_name: bool) -> None:
    (tmp_path / "helper.py").touch()
    script = tmp_path / "train.py"
    script.write_text(CONNECT_FIRST)
    program = ["-m", "train"] if by_name else [str(script)]
    argv = [sys.executable, "-W", "error:::runpy", "-m", "workerlib.store", *program, "--lr", "1"]
    run = f"import os, sys; os.chdir({str(tmp_path)!r}); os.execv(sys.executable, {argv!r})"
    first, second = _pair(port)
    with _start(run, first) as zero, _start(run, second) as one:
        for process in (zero, one):
            try:
                output, errors = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()
            assert (output, process.returncode) == ("__main__ True ['--lr', '1']\nhere\n2\n", 0), errors


@pytest.mark.slow
def test_nodeclient_may_ask_where_a_script_stands_that_knows_nothing_of_workerlib(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "stacks"))
        listener.listen()
        environ = {**os.environ, **replace(SOLO, rank=1).to_environ(), STACKS: str(tmp_path / "stacks")}
        command = [sys.executable, "-m", "workerlib.store", str(tmp_path / "train.py")]
        subprocess.run(command, env=environ, timeout=TIMEOUT_S, check=True)
        listener.setblocking(False)
        listener.accept()[0].close()


@pytest.mark.slow
def test_a_call_without_a_program_or_a_launcher_gets_an_error_with_what_to_do() -> None:
    bare = {name: value for name, value in os.environ.items() if name not in SOLO.to_environ()}
    for words, code, said in [([], 64, "usage: python -m workerlib.store"), (["train.py"], 1, "nodeclient join")]:
        command = [sys.executable, "-m", "workerlib.store", *words]
        ended = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
        assert ended.returncode == code
        assert said in ended.stderr


def test_others_go_on_when_rank_0_listens(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LISTENS_WITHIN_S", TIMEOUT_S)
    waiting = threading.Thread(target=store.await_listener, args=(replace(SOLO, master_port=port),))
    waiting.start()
    with socket.create_server(("127.0.0.1", port)) as rank_0:
        rank_0.settimeout(TIMEOUT_S)
        rank_0.accept()[0].close()
        waiting.join(TIMEOUT_S)
    assert not waiting.is_alive()


def test_others_wait_for_rank_0_for_a_moment_only(port: int) -> None:
    began = time.monotonic()
    store.await_listener(replace(SOLO, master_port=port))
    assert time.monotonic() - began >= store.LISTENS_WITHIN_S


def test_the_name_of_rank_0_is_looked_up_once_and_its_host_not_flooded(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a thousand ranks may look at that host, and ask the same server for its name."""
    looks: list[str] = []
    look_up = socket.getaddrinfo

    def noted(host: str, *args: Any, **kwargs: Any) -> Any:
        looks.append(host)
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", noted)
    store.await_listener(replace(SOLO, master_address="localhost", master_port=port))
    assert looks.count("localhost") == 1
    assert len(looks) < 100, "what follows names an address, and asks no server"


def test_others_leave_it_to_torch_to_complain_of_a_name_that_cannot_be(port: int) -> None:
    store.await_listener(replace(SOLO, master_address=f"{'x' * 64}.example", master_port=port))


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.4.1", "2.7.1"])
def test_a_torch_whose_libuv_takes_no_socket_serves_the_store_all_the_same(
    port: int, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    import torch  # noqa: PLC0415 - the quick tests of this module need none

    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    served = store.serve(replace(SOLO, master_port=port))
    assert (served.libuvBackend, served.port) == (False, port)
