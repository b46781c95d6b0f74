"""The order in which streams have their turn."""

import os
import select
import threading

import pytest

from nodeclient.output.descriptors import pipe, pseudo_terminal
from nodeclient.output.file_thread import FileThread
from nodeclient.output.pump import Pump
from nodeclient.output.streams import Prefixed, Raw, WorkerStream
from nodeclient.output.terminal_writer import QUEUE_BYTES_MAX, TerminalWriter
from tests.nodeclient.output.stage import Screen
from tests.support.programs import TIMEOUT_S, wait_until

BATCH = 60 * 1024
"""The size of one stream's bytes; it fits a pipe."""


class Bench:
    """A pump between pipes that the test fills and a screen that it reads."""

    def __init__(self) -> None:
        self.screen = Screen()
        self.terminal_writer = TerminalWriter(self.screen.fd, pytest.fail)
        self.pump = Pump([self.terminal_writer], lambda _: None)
        self.streams: list[WorkerStream] = []
        self.ends: list[int] = []

    def add(self, written: bytes) -> None:
        """Prepare a stream that has written something; the prefix of its lines is its number."""
        reading, writing = pipe()
        os.write(writing, written)
        self.ends.append(writing)
        prefix = b"%d " % len(self.streams)
        self.streams.append(WorkerStream(reading, [Prefixed(self.terminal_writer, prefix)], self.terminal_writer))

    def start(self) -> None:
        """Give all of them to the pump at once."""
        added = threading.Event()
        self.pump.post(lambda: self.pump.add(self.streams))
        self.pump.post(added.set)
        added.wait()

    def finish(self) -> bytes:
        """Read the screen, end everything and return what was on the screen."""
        self.screen.start_reading()
        for end in self.ends:
            os.close(end)
        wait_until("the end of all streams", lambda: all(stream.ended for stream in self.streams))
        self.pump.stop()
        self.terminal_writer.close()
        return self.screen.finish()


def test_of_several_that_wait_at_once_those_that_were_added_first_come_first() -> None:
    bench = Bench()
    for _ in range(8):
        bench.add(b"words\n")
    bench.start()
    assert bench.finish() == b"".join(b"%d words\n" % number for number in range(8))


def test_when_a_slow_reader_reads_those_come_first_that_had_to_wait() -> None:
    bench = Bench()
    first = QUEUE_BYTES_MAX // BATCH + 1
    for _ in range(3 * first):
        bench.add((b"x" * 1_019 + b"\n") * 60)
    bench.start()
    wait_until("a full terminal_writer", lambda: bench.terminal_writer.is_full)
    for number in range(first):
        os.write(bench.ends[number], b"again\n")
    lines = bench.finish().splitlines()
    whose = [int(line.partition(b" ")[0]) for line in lines]
    again = lines.index(b"0 again")
    assert len(lines) == 3 * first * 60 + first
    assert set(whose[first * 60 : again]) >= set(range(first, 2 * first))


def test_a_terminal_is_read_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeclient.output.pump.REST_S", 2 * TIMEOUT_S)
    bench = Bench()
    reading, writing = pseudo_terminal(bench.screen.fd)
    bench.ends.append(writing)
    bench.streams.append(WorkerStream(reading, [Raw(bench.terminal_writer)], bench.terminal_writer))
    bench.start()
    for line in (b"first\n", b"second\n"):
        os.write(writing, line)
        shown, _, _ = select.select([bench.screen.reading], [], [], TIMEOUT_S)
        assert shown
        assert os.read(bench.screen.reading, BATCH) == line
    bench.finish()


def test_where_the_system_has_no_thread_to_spare_the_next_call_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    pump, files, done = Pump([], lambda _: None), FileThread(lambda _: None), threading.Semaphore(0)
    with monkeypatch.context() as system:
        system.setattr(threading.Thread, "start", refuse)
        for thread in (pump, files):
            with pytest.raises(RuntimeError):
                thread.post(done.release)
    for thread in (pump, files):
        assert thread.post(done.release)
        assert done.acquire(timeout=TIMEOUT_S)
        thread.stop()
