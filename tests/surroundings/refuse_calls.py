"""Becomes a program for which the kernel does not know some system calls: a filter of seccomp(2) returns ENOSYS.

Arguments: the numbers of the calls, with commas, and the program with its own. Root only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
SECCOMP_RET_ERRNO = 0x0005_0000
SECCOMP_RET_ALLOW = 0x7FFF_0000
"""The values in linux/prctl.h and linux/seccomp.h."""

LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
"""The values in linux/bpf_common.h: the filter's input is words, of which the first is the number of the call."""


class Program(ctypes.Structure):
    """A `struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def instruction(code: int, value: int, otherwise: int = 0) -> bytes:
    """Return a `struct sock_filter`; `otherwise` is how many instructions a condition that does not hold skips."""
    return struct.pack("HBBI", code, 0, otherwise, value)


def main() -> None:
    """Set the filter and become the program."""
    assert platform.machine() in {"x86_64", "aarch64"}
    code = instruction(LOAD, 0)
    for number in map(int, sys.argv[1].split(",")):
        code += instruction(JUMP_IF_EQUAL, number, 1) + instruction(RETURN, SECCOMP_RET_ERRNO | errno.ENOSYS)
    code += instruction(RETURN, SECCOMP_RET_ALLOW)
    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(len(code) // len(instruction(LOAD, 0)), code)
    for call in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - that is what it is for


main()
