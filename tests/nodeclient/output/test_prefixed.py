"""What a worker's text becomes that overwrites itself and pauses, where several workers share an output."""

import pytest

from nodeclient.output import streams
from nodeclient.output.terminal_writer import TerminalWriter
from tests.nodeclient.output.stage import Screen


def shown(*chunks: bytes, is_terminal: bool) -> bytes:
    """Return the output of a worker that writes these chunks, and pauses after each."""
    screen, complaints = Screen(is_terminal=is_terminal), list[str]()
    screen.start_reading()
    terminal_writer = TerminalWriter(screen.fd, complaints.append)
    sink = streams.Prefixed(terminal_writer, b"- ")
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
    ],
)
def test_a_line_after_a_state_is_whole_though_its_writer_pauses(
    chunks: tuple[bytes, ...], last: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STATES_EVERY_S", 1_000.0)
    assert shown(b"1%\r", *chunks, is_terminal=False) == b"- 1%\n- " + last + b"\n"


def test_the_end_of_a_state_that_is_a_line_already_makes_no_empty_line() -> None:
    assert shown(b"\r1%", b"\n", b"bye\n", is_terminal=False) == b"- 1%\n- bye\n"


def test_the_last_state_stays_on_a_terminal_though_its_end_comes_late() -> None:
    assert shown(b"1%\r", b"\n", is_terminal=True).endswith(b"- 1%\n")
