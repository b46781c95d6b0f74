"""What workers write comes out in the same order and the same pieces cold and warm, and nothing of it twice."""

import fcntl
import os
import pty
import struct
import termios
from contextlib import suppress
from typing import Any

import pytest

from tests.nodeclient.forkserver.support import DESCRIBE, Stage, assert_same, differences, forgive_more_modules, python
from tests.support.programs import Program

pytestmark = pytest.mark.slow

CHATTY = """
import logging, sys
out = sys.stdout
log = logging.getLogger("chatty")
log.addHandler(logging.StreamHandler())
def say(text):
    out.write(text)
    log.warning("warned of %r", text)
"""
"""Holds on to the streams that it finds when it is loaded, as a logger does."""

SPEAK = """
import chatty, ctypes, os, sys, report
report.report()
c = ctypes.CDLL(None)
if os.environ["RANK"] == "0":
    for size in (1, 10, 1000, 1023, 4096, 8191, 8192, 9000, 20_000):
        for stream in sys.stdout, sys.stderr:
            stream.write("." * size)
            os.write(stream.fileno(), b"<>")
            print(size, file=stream)
            os.write(stream.fileno(), b"<>")
    for _ in range(100):
        sys.stdout.buffer.write(b"-" * 90)
        os.write(1, b"<>")
    chatty.say("captured")
    c.puts(b"said in C")
    chatty.say("captured again\\n")
    sys.stdout.buffer.write(b"bytes\\n")
    print("h\\u00e9", end="", flush=True)
    sys.stderr.write("without an end")
    sys.stderr.write("\\n")
    sys.stdout.write("the last words")
    report.report(heard=[sys.stdin.readline(), sys.stdin.buffer.read1(3).decode(), sys.stdin.read()])
"""


@pytest.mark.parametrize(
    ("workers", "unbuffered"), [("2", "0"), *(pytest.param("1", each, marks=pytest.mark.long) for each in "01")]
)
def test_words_come_in_the_same_order(stage: Stage, workers: str, unbuffered: str) -> None:
    stage.write("chatty.py", CHATTY)
    script = stage.write("train.py", SPEAK)
    # A line of the node's own would end the line that a worker is writing, here or there.
    flags = ("--nproc-per-node", workers, "--log-dir", "LOGS", "--log-level", "error")
    environ = {"PYTHONUNBUFFERED": unbuffered}
    assert_same(
        *stage.both(*python(script), preload="chatty", flags=flags, environ=environ, words="tea\r\nmilk\rand\n")
    )


def on_a_terminal(stage: Stage, *command: str, preload: str = "") -> tuple[str, dict[str, Any]]:
    """Run a job on a terminal, type tea when it asks; return what its worker drew between its marks, and its report."""
    stage.clear()
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 99, 0, 0))
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    silent = stage.command(*command, preload=preload, flags=("--log-level", "error"))
    node = Program(*silent, environ=stage.environ(PYTHONUNBUFFERED="0"), **streams)
    os.close(terminal)
    drawn, is_answered = "", False
    try:
        with suppress(OSError):  # the end of a terminal
            while True:
                drawn += os.read(controller, 65_536).decode()
                if "drink? " in drawn and not is_answered:
                    is_answered = os.write(controller, b"tea\n") > 0
        assert node.wait() == 0
    finally:
        node.close()
        os.close(controller)
    [reports] = stage.reports()
    assert reports.warm == bool(preload)
    return drawn.partition("{{{")[2].partition("}}}")[0], reports.facts


def test_a_lone_worker_on_a_terminal_speaks_and_listens(stage: Stage) -> None:
    ask = """
print("{{{", os.isatty(1), os.get_terminal_size(), end=" ")
os.write(1, b"<>")
print("ends a line")
os.write(1, b"<>")
print(input("which drink? ").upper(), end="", flush=True)
sys.stderr.write("}}}")
"""
    script = stage.write("train.py", f"{DESCRIBE}import os, sys{ask}")
    cold, facts = on_a_terminal(stage, *python(script))
    warm, others = on_a_terminal(stage, *python(script), preload="beacon,json")
    assert warm == cold
    assert warm.startswith(" True os.terminal_size(columns=99, lines=24) ")
    assert "TEA" in warm
    forgive_more_modules(facts, others)
    assert differences(facts, others) == []
