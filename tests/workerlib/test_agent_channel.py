"""The channels of a worker to its nodeclient belong to the worker's own process."""

import os
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.support.programs import TIMEOUT_S
from tests.support.worker_channels import connected
from workerlib.contract.channel_messages import CODEC, AskRestore, Comparison, Interval, Saved, Unkept
from workerlib.contract.packets import PACKET_BYTES, ChannelError
from workerlib.keeping.keep_channel import KeepChannel


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # of Python 3.12, at each fork
@pytest.mark.slow
def test_a_forked_child_does_not_keep_a_channel_open(tmp_path: Path) -> None:
    """Its node would believe that a worker that has ended is still there."""
    with connected(tmp_path, KeepChannel) as (channel, node):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # until this test is over
            os._exit(0)
        assert b"Hello" in node.recv(PACKET_BYTES)
        channel.close()
        node_hears = node.recv(PACKET_BYTES)
    for end in (reader, writer):
        os.close(end)
    assert os.waitpid(child, 0) == (child, 0)
    assert node_hears == b""


def test_a_message_that_cannot_be_sent_ends_the_channel(tmp_path: Path) -> None:
    """A save that has requested memory would wait a minute for an answer that cannot come."""
    ended = threading.Event()
    with connected(tmp_path, KeepChannel) as (channel, node):
        reader = channel.listen("reader", lambda *_: None, lambda _: ended.set())
        with suppress(BlockingIOError):
            while True:  # until as much waits as the node may leave unread
                channel.send(AskRestore())
        assert not ended.is_set()
        channel.report(AskRestore())
        reader.join(TIMEOUT_S)
        assert ended.is_set()
        while node.recv(PACKET_BYTES):
            pass  # what was sent before still arrives, and then the end


def test_a_message_that_its_reader_cannot_handle_ends_the_channel(tmp_path: Path) -> None:
    """Its node would give a further round to a worker that never hears of it, while all others wait for it there."""
    ends = SimpleQueue[Exception | None]()

    def fail(*_: object) -> None:
        raise AttributeError("no such thing")

    with connected(tmp_path, KeepChannel) as (channel, node):
        assert b"Hello" in node.recv(PACKET_BYTES)
        channel.listen("reader", fail, ends.put)
        node.send(CODEC.encode(Comparison(alike=True)))
        assert isinstance(ends.get(timeout=TIMEOUT_S), AttributeError)
        assert node.recv(PACKET_BYTES) == b"", "its node knows that it does not listen any more"


def test_a_node_that_stood_still_during_many_saves_still_hears_its_worker(tmp_path: Path) -> None:
    """The worker would be asked for no save until its round is over."""
    with connected(tmp_path, KeepChannel) as (channel, node):
        saves, unkept = 10_000, 100
        for step in range(saves):
            channel.report(Saved(step, 0.1, 1))
        for _ in range(unkept):
            channel.report(Unkept("the state of SGD"))
        node.setblocking(False)
        heard = []
        with suppress(BlockingIOError):
            while packet := node.recv(PACKET_BYTES):
                heard.append(packet)
        assert sum(b"Unkept" in packet for packet in heard) == unkept
        assert len(heard) < saves
        channel.report(Saved(saves, 0.1, 1))
        assert b"Saved" in node.recv(PACKET_BYTES)


def test_a_node_that_stood_still_hears_of_the_last_interval_with_the_next_save(tmp_path: Path) -> None:
    """A worker reports an interval only when it changes, which may be once in a round."""
    with connected(tmp_path, KeepChannel) as (channel, node):
        for step in range(10_000):
            channel.report(Saved(step, 0.1, 1))
        for steps in (64, 128):
            channel.report(Interval(steps, 0.1, 0))
        node.setblocking(False)
        with suppress(BlockingIOError):
            while node.recv(PACKET_BYTES):
                pass
        for step in (1, 2):
            channel.report(Saved(step, 0.1, 1))
        heard = []
        with suppress(BlockingIOError):
            while packet := node.recv(PACKET_BYTES):
                heard.append(CODEC.decode(packet))
        assert heard == [Interval(128, 0.1, 0), Saved(1, 0.1, 1), Saved(2, 0.1, 1)]


def test_a_save_that_comes_to_its_end_after_the_channel_disturbs_nobody(tmp_path: Path) -> None:
    with connected(tmp_path, KeepChannel) as (channel, _):
        channel.close()
        channel.report(Saved(1, 0.1, 1))


def test_a_packet_that_is_too_long_is_not_taken_for_the_end(tmp_path: Path) -> None:
    with connected(tmp_path, KeepChannel) as (channel, node):
        node.send(b" " * (PACKET_BYTES + 1))
        with pytest.raises(ChannelError, match=f"^a packet is longer than {PACKET_BYTES} bytes$"):
            channel.receive()
