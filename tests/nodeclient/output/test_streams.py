"""What a worker's text becomes where several workers share an output, and how much of its end is kept."""

from collections.abc import Sequence

import pytest

from nodeclient.output import streams
from nodeclient.output.streams import TAIL_BYTES, Prefixed, Tail
from nodeclient.output.terminal_writer import TerminalWriter
from tests.nodeclient.output.stage import Screen


def shown(*chunks: bytes, is_terminal: bool) -> bytes:
    """Return the output of a worker that writes these chunks, and pauses after each."""
    screen, complaints = Screen(is_terminal=is_terminal), list[str]()
    screen.start_reading()
    terminal_writer = TerminalWriter(screen.fd, complaints.append)
    sink = Prefixed(terminal_writer, b"- ")
    for chunk in chunks:
        sink.write(chunk)
        sink.flush()
    sink.end()
    terminal_writer.flush()
    terminal_writer.close()
    assert not complaints
    return screen.finish()


@pytest.mark.parametrize(
    ("chunks", "last"),
    [
        ((b"   \rEvaluating... ", b"done\n"), b"Evaluating... done"),
        ((b"\rEvaluating", b".", b".", b"\n"), b"Evaluating.."),
        ((b"\r2%", b"\rbye\n"), b"bye"),
        ((b"2%\r", b"\n"), b"2%"),
        ([b"%d%%\r" % number for number in range(2, 50)], b"49%"),
    ],
)
def test_of_states_one_is_shown_now_and_then_and_a_line_after_them_is_whole_though_its_writer_pauses(
    chunks: Sequence[bytes], last: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STATES_EVERY_S", 1_000.0)
    assert shown(b"1%\r", *chunks, is_terminal=False) == b"- 1%\n- " + last + b"\n"


def test_the_end_of_a_state_that_is_a_line_already_makes_no_empty_line() -> None:
    assert shown(b"\r1%", b"\n", b"bye\n", is_terminal=False) == b"- 1%\n- bye\n"


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("end", [b"\n", b"\r"])
def test_what_nobody_sees_makes_no_line_and_replaces_none(is_terminal: bool, end: bytes) -> None:
    text = shown(b"100%" + end + b"\x1b[?25h\x1b[1A", is_terminal=is_terminal)
    assert b" 100%" in text
    assert text.count(b"\n") == (end == b"\n" or not is_terminal)
    assert (b"\x1b[?25h" in text) == is_terminal
    assert b"\x1b[1A" not in text


def test_the_last_state_stays_on_a_terminal_though_its_end_comes_late() -> None:
    assert shown(b"1%\r", b"\n", is_terminal=True).endswith(b"- 1%\n")


def test_the_tail_of_a_stream_is_bounded() -> None:
    tail = Tail()
    written = b""
    for number in range(5_000):
        line = b"line %d of many, and some more words\n" % number
        written += line
        tail.write(line)
    assert tail.data == written[-TAIL_BYTES:]
    tail.write(b"z" * 10 * TAIL_BYTES)
    assert tail.data == b"z" * TAIL_BYTES
