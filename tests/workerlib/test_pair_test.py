"""The program of a preflight, run as two processes with gloo between them."""

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from msgspec import json
from torch.distributed import DistStoreError, TCPStore  # type: ignore[attr-defined]  # public all the same

from coordinatord.protocol.pair_messages import PairResult
from nodeclient.host.ports import PortReservation
from tests.support.pair_faults import REPEATS, Fault, interpreter
from tests.support.programs import TIMEOUT_S, Program, clean_environ
from workerlib import pair_test

pytestmark = pytest.mark.slow


def start(python: str | Path, rank: int, port: int, within_s: float = TIMEOUT_S) -> Program:
    environ = clean_environ(GLOO_SOCKET_IFNAME="lo")
    return Program(python, pair_test.__file__, "7", str(rank), "127.0.0.1", str(port), str(within_s), environ=environ)


def results(program: Program) -> list[PairResult]:
    """Return what a program has printed, once it has ended well."""
    with program:
        assert program.wait() == 0, program.output
        lines = [line for line in program.lines if line.startswith("{")]
    return [json.decode(line, type=PairResult) for line in lines]


def results_of_two(pythons: Sequence[str | Path]) -> list[PairResult]:
    """Return the last results of a test of two nodes with these interpreters."""
    with closing(PortReservation()) as reservation:
        programs = [start(python, rank, reservation.port) for rank, python in enumerate(pythons)]
        return [results(program)[-1] for program in programs]


def test_a_wrong_product_and_a_slow_one_are_found_each_by_its_own_node(tmp_path: Path) -> None:
    wrong, slow = results_of_two([interpreter(tmp_path, fault) for fault in (Fault.WRONG, Fault.SLOW)])
    assert [wrong.wrong, slow.wrong] == [True, False]
    for result in (wrong, slow):
        assert result.mb_s
        assert not result.text
    assert wrong.gflops is not None
    assert slow.gflops is not None
    assert slow.gflops < wrong.gflops / (REPEATS / 10)


def test_a_node_whose_partner_does_not_come_tells_its_product_and_why_there_is_no_sum() -> None:
    with closing(PortReservation()) as reservation:
        first, last = results(start(sys.executable, 0, reservation.port, within_s=1.0))
    assert first.gflops == last.gflops is not None
    assert last.mb_s is None
    assert last.text


def test_a_partner_that_is_slow_within_the_test_is_given_up_in_time() -> None:
    with closing(PortReservation()) as reservation:
        hour = timedelta(hours=1)
        store = TCPStore("127.0.0.1", reservation.port, is_master=True, timeout=hour, wait_for_workers=False)
        with pytest.raises(DistStoreError):
            pair_test.measure_sum(torch, store, 0, time.monotonic())


def test_a_host_without_torch_says_so(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    [result] = results(start(python, 0, 1))
    assert result == PairResult(7, None, None, text="ModuleNotFoundError: No module named 'torch'")


@pytest.mark.long
def test_a_safe_path_costs_no_folder_of_modules(tmp_path: Path) -> None:
    python, modules = tmp_path / "python", Path(torch.__file__).parents[1]
    python.write_text(f'#!/bin/sh\nPYTHONSAFEPATH=1 PYTHONPATH={modules} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    with closing(PortReservation()) as reservation:
        first, _ = results(start(python, 0, reservation.port, within_s=1.0))
    assert first.gflops
