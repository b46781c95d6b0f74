"""A failure as it really was: what Python, torch, gloo or NCCL wrote when a known cause ended a worker.

Those of Python, torch and gloo were produced with torch 2.13, those of NCCL and CUDA are out of public reports; both
are shortened where they are long.
"""

from dataclasses import dataclass, field

from nodeclient.core.events import Diagnosis


def raised(exception: str, before: str = "", frames: str = "") -> str:
    """Write an uncaught exception as Python does."""
    return f'{before}Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n{frames}{exception}\n'


@dataclass(frozen=True)
class Sample:
    """One failure: its data, and the cause that is to be found."""

    cause: str
    stderr: str = ""
    exit_code: int = 1
    says: str = ""
    """Part of the hint."""
    nodes: int = 2
    consequences: int = 3
    early: bool = False
    """Another worker had exited with 0 before."""
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    """The other findings."""


CUDA_NOTES = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
