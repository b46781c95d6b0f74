"""System calls on hosts that lack them."""

import ctypes
import errno
import os

import pytest

from nodeclient.host.syscalls import memory_file


def test_a_c_library_without_a_function_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
        memory_file("kept")
