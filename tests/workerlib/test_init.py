"""`workerlib.init` for real: worker processes that form a gloo process group over loopback."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest

from nodeclient.host.ports import PortReservation
from tests.support.environments import environment
from tests.support.gloo import BUSY_AT_THE_END, skip_where_gloo_needs_no_python
from tests.support.programs import TIMEOUT_S
from workerlib import WorkerEnvironment, store
from workerlib.contract.env import ERROR_HANDLING, KEEP
from workerlib.init import _outlive_errors

pytestmark = pytest.mark.slow

SOLO = replace(environment(0, 1, 4, 1), restart_count=2, max_restarts=3, job="job", run="run", node="node")

WORLD_SIZE = 2


@pytest.mark.parametrize(
    ("offered", "value", "expected"), [(True, "1", "0"), (True, "3", "3"), (True, "0", "0"), (False, "1", "1")]
)
def test_a_worker_outlives_errors_of_nccl_where_its_state_can_be_kept(
    monkeypatch: pytest.MonkeyPatch, offered: bool, value: str, expected: str
) -> None:
    monkeypatch.setenv(ERROR_HANDLING, value)
    monkeypatch.setenv(KEEP, "/run/node") if offered else monkeypatch.delenv(KEEP, raising=False)
    _outlive_errors()
    assert os.environ[ERROR_HANDLING] == expected


@pytest.fixture
def port() -> Iterator[int]:
    reservation = PortReservation()
    yield reservation.port
    reservation.close()


def _start(
    program: str, environment: WorkerEnvironment, *arguments: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment.to_environ(), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _alone(program: str, port: int, *arguments: str, address: str = SOLO.master_address) -> tuple[str, str]:
    """Run a program as the only worker; return its output and its errors."""
    with _start(program, replace(SOLO, master_port=port, master_address=address), *arguments) as process:
        return process.communicate(timeout=TIMEOUT_S)


def _pair(port: int) -> tuple[WorkerEnvironment, WorkerEnvironment]:
    first = replace(
        SOLO, world_size=WORLD_SIZE, local_world_size=WORLD_SIZE, role_world_size=WORLD_SIZE, master_port=port
    )
    return first, replace(first, rank=1, local_rank=1, role_rank=1)


AGREEING = """
import sys, torch, workerlib
with workerlib.init() as ctx:
    total = torch.tensor(ctx.rank + 1)
    torch.distributed.all_reduce(total)
    print(ctx.rank, ctx.local_rank, ctx.world_size, ctx.device, ctx.round, ctx.restart_count, int(total))
    print(ctx.should_stop(), flush=True)
    sys.stdin.readline()
    print(ctx.should_stop())
    print(ctx.should_stop())
print(torch.distributed.is_initialized())
"""


WITHOUT_A_CONTEXT = """
import sys, torch, workerlib
print(workerlib.should_stop())
torch.distributed.init_process_group("gloo")
print(workerlib.should_stop(), flush=True)
sys.stdin.readline()
print(workerlib.should_stop())
"""


@pytest.mark.parametrize(
    ("program", "before", "after"),
    [
        (AGREEING, "{rank} {rank} 2 cpu 4 2 3\nFalse\n", "True\nTrue\nFalse\n"),
        pytest.param(WITHOUT_A_CONTEXT, "False\nFalse\n", "True\n", marks=pytest.mark.long),
    ],
    ids=["context", "group of another's"],
)
def test_all_ranks_agree_to_stop_when_one_of_them_got_sigterm(port: int, program: str, before: str, after: str) -> None:
    first, second = _pair(port)
    with _start(program, first) as zero, _start(program, second) as one:
        for rank, process in enumerate((zero, one)):
            assert process.stdout
            assert process.stdout.readline() + process.stdout.readline() == before.format(rank=rank)
        one.send_signal(signal.SIGTERM)
        for process in (zero, one):
            assert process.stdin
            process.stdin.write("go on\n")
            process.stdin.flush()
        for process in (zero, one):
            output, errors = process.communicate(timeout=TIMEOUT_S)
            assert (output, process.returncode) == (after, 0), errors


HEEDING = """
import os, signal, sys, torch.distributed, workerlib
def heed(name):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in what runs in the background
    for signum in (signal.SIGUSR2, signal.SIGHUP):
        signal.signal(signum, lambda *_: print("the script's own", flush=True))
    with workerlib.init() as ctx:
        assert not ctx.should_stop()
        signal.raise_signal(signal.SIGHUP)
        assert not ctx.should_stop()
        signal.raise_signal(getattr(signal, name))
        print(ctx.should_stop(), flush=True)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
for case in sys.argv[1:]:
    name, _, handled = case.partition("=")
    if os.fork() == 0:
        if handled:
            os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = handled
        heed(name)
        break
    _, status = os.wait()
    print(case, os.waitstatus_to_exitcode(status), flush=True)
"""
"""Has a process of its own for each signal, forked when torch is imported."""


def test_it_heeds_the_signals_that_the_node_hands_on_but_for_those_with_a_handler(port: int) -> None:
    cases = ["SIGINT", "SIGINT=SIGINT,SIGHUP", "SIGUSR1=SIGHUP,SIGKILL,SIGNEW,SIGSTOP,SIGUSR1", "SIGTERM=SIGUSR1"]
    output, errors = _alone(HEEDING, port, *cases)
    assert output == "".join(f"the script's own\nTrue\n{case} 0\n" for case in cases), errors


WITH_CHILDREN = """
import multiprocessing, signal
from workerlib.stop import STOP_REQUEST
handler = signal.getsignal(signal.SIGTERM)
STOP_REQUEST.listen()
multiprocessing.set_start_method("fork")
endless = multiprocessing.Process(target=signal.pause, daemon=True)
endless.start()
with multiprocessing.Pool(2) as pool:
    assert pool.map(signal.getsignal, [signal.SIGTERM]) == [handler]
endless.terminate()
endless.join()
signal.raise_signal(signal.SIGTERM)
print(endless.exitcode, STOP_REQUEST.received)
multiprocessing.Process(target=signal.pause, daemon=True).start()
"""
"""Leaves a daemonic child for the end of Python to terminate and join."""


def test_children_that_are_forked_end_by_sigterm() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITH_CHILDREN], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert (ended.returncode, ended.stdout) == (0, f"{-signal.SIGTERM} True\n"), ended.stderr


CLOSING = """
import signal, threading, workerlib
ctx = workerlib.init(backend="gloo")
def ask():
    try:
        ctx.should_stop()
    except RuntimeError as error:
        print(error)
thread = threading.Thread(target=ask)
thread.start()
thread.join()
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
assert not ctx.should_stop()
assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
ctx.close()
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
ctx.close()
print("the end")
"""


def test_the_sigterm_handler_needs_the_main_thread_and_goes_with_the_context(port: int) -> None:
    output, errors = _alone(CLOSING, port)
    assert re.fullmatch(r".*outside the main thread.*\nthe end\n", output), errors


OUTLIVED = f"""
import workerlib
{BUSY_AT_THE_END}
def main():
    with workerlib.init(backend="gloo"):
        model = be_busy_at_the_end()
main()
"""


@pytest.mark.long
def test_a_worker_ends_although_a_model_outlives_the_context(port: int) -> None:
    skip_where_gloo_needs_no_python()
    first, second = _pair(port)
    _end_well(OUTLIVED, first, second)


def _end_well(program: str, first: WorkerEnvironment, second: WorkerEnvironment) -> None:
    with _start(program, first) as zero, _start(program, second) as one:
        for process in (zero, one):
            try:
                _, errors = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()
            assert process.returncode == 0, errors


BUSY_WITHOUT_A_CONTEXT = f"""
import atexit, workerlib
{BUSY_AT_THE_END}
kept = []
dist.init_process_group("gloo")
workerlib.should_stop()
atexit.register(lambda: kept.append(be_busy_at_the_end()))
"""
"""Is busy where nobody gets the interpreter any more before Python ends, but who waits for gloo's threads there."""


@pytest.mark.long
def test_a_worker_that_asked_without_a_context_ends_although_gloo_is_busy(port: int) -> None:
    skip_where_gloo_needs_no_python()
    first, second = _pair(port)
    _end_well(BUSY_WITHOUT_A_CONTEXT, first, second)


REFUSED = """
import torch.distributed as dist, workerlib
def init_in_vain():
    try:
        workerlib.init()
    except RuntimeError as error:
        print(error)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
init_in_vain()
dist.destroy_process_group()
with workerlib.init():
    init_in_vain()
init_in_vain()
"""


def test_only_the_first_call_in_a_round_makes_a_group_and_only_where_there_is_none(port: int) -> None:
    output, errors = _alone(REFUSED, port)
    again = "workerlib.init() was called before in this round: call it once, and pass on the Context that it returns"
    one = (
        "workerlib.init() makes torch's default process group, and this process has one already: leave out the "
        "script's own init_process_group(), and init() in a function of workerlib.elastic"
    )
    assert output.splitlines() == [one, again, again], errors


LISTENING = """
import os, pathlib, workerlib
LISTEN = "0A"
def listening(table):
    rows = [line.split() for line in pathlib.Path(table).read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == LISTEN and int(row[1].rpartition(":")[2], 16) == workerlib_port]
workerlib_port = int(os.environ["MASTER_PORT"])
with workerlib.init():
    print(listening("/proc/self/net/tcp"), listening("/proc/self/net/tcp6"))
"""


@pytest.mark.parametrize("address", ["127.0.0.1", pytest.param("localhost", marks=pytest.mark.long)])
def test_the_store_listens_at_the_address_of_the_master_alone(port: int, address: str) -> None:
    said, errors = _alone(LISTENING, port, address=address)
    assert said == f"['0100007F:{port:04X}'] []\n", errors
    assert "every address" not in errors


def test_where_the_master_has_another_address_torch_listens_at_every_one_and_that_is_said(
    port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert store.bound_socket(replace(SOLO, master_port=other.getsockname()[1])) is None, "the port is taken"
        assert (
            "listens at every address of this host, not at 127.0.0.1: Address already in use" in capsys.readouterr().err
        )
    for elsewhere in ("192.0.2.1", "nowhere.invalid", f"{'x' * 64}.example"):
        assert store.bound_socket(replace(SOLO, master_port=port, master_address=elsewhere)) is None
        assert f"listens at every address of this host, not at {elsewhere}: " in capsys.readouterr().err


def test_a_name_counts_if_it_leads_to_one_address_that_others_reach(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = replace(SOLO, master_address="master.example", master_port=29_500)
    led_to: list[str] = []

    def look_up(host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        assert host == "master.example"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in led_to]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    led_to[:] = ["10.0.0.7", "10.0.0.7"]
    assert store._endpoint("master.example", 29_500) == (socket.AF_INET, ("10.0.0.7", 29_500))
    led_to[:] = ["10.0.0.7", "10.1.0.7"]
    assert store.bound_socket(named) is None
    assert "this name has several addresses" in capsys.readouterr().err
    led_to[:] = ["127.0.1.1"]
    assert store.bound_socket(named) is None
    assert "resolves the name to its loopback address" in capsys.readouterr().err
