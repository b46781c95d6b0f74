"""Runs a Python program on a host that computes slowly or wrongly: python pair_faults.py FAULT PROGRAM [ARGUMENT]..."""

import runpy
import sys
from enum import StrEnum
from pathlib import Path

import torch


class Fault(StrEnum):
    """What is wrong with the products of matrices."""

    SLOW = "slow"
    WRONG = "wrong"


REPEATS = 50
"""How often a slow host computes each product: no other load makes a healthy one as slow."""

right_product = torch.Tensor.__matmul__


def _slow_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    for _ in range(REPEATS - 1):
        right_product(left, right)
    return right_product(left, right)


def _wrong_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    product = right_product(left, right)
    if product.dtype is torch.float32:
        product[3, 5] += 1
    return product


def interpreter(folder: Path, fault: Fault) -> Path:
    """Return an interpreter of such a host, a script below this folder."""
    script = folder / fault / "python"  # nodeclient knows an interpreter by its name
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {fault} "$@"\n')
    script.chmod(0o755)
    return script


if __name__ == "__main__":
    _, fault, program, *arguments = sys.argv
    product = {Fault.SLOW: _slow_product, Fault.WRONG: _wrong_product}[Fault(fault)]
    setattr(torch.Tensor, "__matmul__", product)  # noqa: B010 - a method, which mypy lets nobody assign
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
