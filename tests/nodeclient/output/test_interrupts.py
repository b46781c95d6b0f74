"""Tracebacks of KeyboardInterrupt do not reach the terminal if a worker ends of a SIGINT; all else does."""

import signal
from threading import Event

import pytest

from nodeclient.output.interrupts import BUFFERED_BYTES_MAX, InterruptFilter
from nodeclient.output.streams import Sink

INTERRUPT = b"""Traceback (most recent call last):
  File "train.py", line 3, in <module>
    time.sleep(1000)
KeyboardInterrupt
"""

ERROR = INTERRUPT.replace(b"KeyboardInterrupt", b"ValueError: two\nlines")

LINK = b"\nDuring handling of the above exception, another exception occurred:\n\n"

BY_SIGINT = -signal.SIGINT


def of_rank(text: bytes) -> bytes:
    """Return a text as torch's excepthook prints it."""
    return b"".join(b"[rank0]: " + line for line in text.splitlines(keepends=True))


class Screen(Sink):
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.text = b""
        self.ended = False

    def write(self, chunk: bytes) -> None:
        """Keep the bytes."""
        self.text += chunk

    def end(self) -> None:
        """Note the end."""
        self.ended = True


def a_filter(*, expected: bool = True) -> tuple[Screen, InterruptFilter]:
    """Return a filter before a screen, where a SIGINT is expected to end the worker."""
    screen, interrupts = Screen(), Event()
    if expected:
        interrupts.set()
    return screen, InterruptFilter(screen, interrupts)


def shown(text: bytes, exit_code: int = BY_SIGINT, *, expected: bool = True) -> bytes:
    """Return what is shown of a text once the worker has ended, whether the end of the text or the exit comes first."""
    found = set()
    for text_first in (False, True):
        screen, sink = a_filter(expected=expected)
        sink.write(text)
        if text_first:
            sink.end()
            sink.on_exit(exit_code)
        else:
            sink.on_exit(exit_code)
            assert not sink.needs_flush
            sink.end()
        assert screen.ended
        found.add(screen.text)
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize(
    "traceback",
    [
        INTERRUPT,
        of_rank(INTERRUPT),
        INTERRUPT.replace(b"\n", b"\r\n"),
        INTERRUPT.replace(b"KeyboardInterrupt", b"\x1b[1;35mKeyboardInterrupt\x1b[0m"),
        INTERRUPT.replace(b"KeyboardInterrupt", b"KeyboardInterrupt: "),
        b"Exception ignored in: <module 'threading' from 'threading.py'>\n" + INTERRUPT,
        b"Process SpawnProcess-1:\n" + INTERRUPT,
        ERROR.replace(b"\nlines", b"") + LINK + INTERRUPT,
        of_rank(of_rank(ERROR.replace(b"\nlines", b"") + LINK + INTERRUPT)),
        INTERRUPT + INTERRUPT,
    ],
    ids=["plain", "rank", "terminal", "colours", "text", "ignored", "process", "chain", "chain, two groups", "twice"],
)
def test_a_traceback_of_an_interrupt_is_not_shown_and_what_is_around_it_is(traceback: bytes) -> None:
    assert shown(b"saved\n" + traceback + b"bye\nend") == b"saved\nbye\nend"
    assert shown(b"saved\n" + traceback) == b"saved\n"


@pytest.mark.parametrize("exit_code", [BY_SIGINT, 128 + signal.SIGINT, -signal.SIGKILL])
def test_a_python_and_a_shell_around_it_may_end_by_sigint_and_be_killed_meanwhile(exit_code: int) -> None:
    assert shown(INTERRUPT, exit_code) == b""


@pytest.mark.parametrize("exit_code", [0, 1, -15])
def test_a_script_that_goes_on_and_ends_otherwise_has_printed_it_itself(exit_code: int) -> None:
    assert shown(b"one\n" + INTERRUPT + b"two\n", exit_code) == b"one\ntwo\n" + INTERRUPT


@pytest.mark.parametrize(("exit_code", "text"), [(BY_SIGINT, b"one\ntwo\n"), (1, b"one\n" + INTERRUPT + b"two\n")])
def test_what_a_child_writes_after_the_exit_of_the_worker_is_hidden_or_shown_likewise(
    exit_code: int, text: bytes
) -> None:
    screen, sink = a_filter()
    sink.on_exit(exit_code)
    sink.write(b"one\n" + INTERRUPT + b"two\n" + INTERRUPT)
    assert screen.text == text
    sink.end()
    assert screen.text == text + (b"" if exit_code == BY_SIGINT else INTERRUPT)
    assert screen.ended


@pytest.mark.parametrize(
    "text", [ERROR, of_rank(ERROR), INTERRUPT + LINK + ERROR, b"no traceback", b"KeyboardInterrupt\n"]
)
def test_all_else_is_shown(text: bytes) -> None:
    assert shown(text + b"end") == text + b"end"
    assert shown(text) == text


def test_before_a_sigint_everything_is_shown_at_once() -> None:
    assert shown(INTERRUPT, expected=False) == INTERRUPT


def test_lines_may_come_in_pieces_once_a_traceback_has_begun() -> None:
    begin = INTERRUPT.index(b"\n") + 1
    screen, sink = a_filter()
    for chunk in (INTERRUPT[:begin], *(bytes([byte]) for byte in INTERRUPT[begin:] + b"end\n")):
        sink.write(chunk)
    assert screen.text == b"end\n"
    sink.on_exit(BY_SIGINT)
    assert screen.text == b"end\n"


def test_the_traceback_of_another_error_is_shown_soon_though_the_worker_goes_on() -> None:
    screen, sink = a_filter()
    sink.write(INTERRUPT)
    sink.flush()
    assert INTERRUPT not in screen.text
    sink.write(ERROR[:-10])
    assert sink.needs_flush
    sink.flush()
    assert screen.text == ERROR[:-10]


def test_not_too_much_is_held_back() -> None:
    screen, sink = a_filter()
    for _ in range(BUFFERED_BYTES_MAX // len(INTERRUPT) + 2):
        sink.write(INTERRUPT + b".\n")
    assert screen.text.count(INTERRUPT) > BUFFERED_BYTES_MAX // len(INTERRUPT)


@pytest.mark.parametrize("more", [b"  of a frame\n", b"no end of a line "])
def test_a_traceback_that_does_not_end_is_shown_before_it_is_too_long(more: bytes) -> None:
    screen, sink = a_filter()
    text = INTERRUPT[: INTERRUPT.index(b"\n") + 1] + more * (BUFFERED_BYTES_MAX // len(more) + 1)
    sink.write(text)
    assert screen.text == text
