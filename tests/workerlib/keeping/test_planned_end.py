"""A worker stands still where its script is ready for it, and its node hears of the checkpoint that follows."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import TIMEOUT_S
from tests.support.worker_channels import connected
from workerlib.contract.channel_messages import (
    BEFORE_NAMED,
    CODEC,
    Checkpointed,
    Checkpointing,
    HaltAt,
    Halted,
    Hello,
    Message,
    NotSaved,
    SaveNow,
)
from workerlib.contract.packets import PACKET_BYTES, ChannelError
from workerlib.keeping import checkpoints
from workerlib.keeping.checkpoints import checkpointed
from workerlib.keeping.keep_channel import KeepChannel
from workerlib.keeping.planned_end import PlannedEnd
from workerlib.stop import STOP_REQUEST


class NodeEnd:
    """The node's end of a worker's channel."""

    def __init__(self, channel: KeepChannel, end: socket.socket) -> None:
        self.channel = channel
        self._socket = end
        assert isinstance(self.receive(), Hello)

    def send(self, message: Message) -> None:
        """Send a packet."""
        self._socket.send(CODEC.encode(message))

    def receive(self) -> Message:
        """Return the next packet."""
        return CODEC.decode(self._socket.recv(PACKET_BYTES))

    def ask(self, message: Message) -> Message:
        """Send a packet, and return the one that answers it."""
        self.send(message)
        return self.receive()

    def close(self) -> None:
        """End as a nodeclient does."""
        self._socket.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeEnd]:
    with connected(tmp_path, KeepChannel) as ends:
        yield NodeEnd(*ends)


@pytest.fixture
def end(node: NodeEnd) -> PlannedEnd:
    """Return the worker's end, which hears its node."""
    started = PlannedEnd(node.channel)
    started.listen()
    return started


@pytest.fixture
def writing(node: NodeEnd, end: PlannedEnd) -> PlannedEnd:
    """Return the end of a worker whose script writes checkpoints, which its node has heard."""
    end.expect_checkpoints()
    assert node.receive() == Checkpointing()
    return end


def in_a_thread(work: Callable[[], bool]) -> Callable[[], bool]:
    """Begin what may stand still; return what waits for it, and returns its result."""
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()

    def result() -> bool:
        thread.join(TIMEOUT_S)
        return results[0]

    return result


def test_the_checkpoint_is_wanted_at_the_step_that_was_named(node: NodeEnd, writing: PlannedEnd) -> None:
    assert not writing.wants_checkpoint(4)
    assert node.ask(HaltAt(1, BEFORE_NAMED)) == Halted(5, 1)
    answer = in_a_thread(lambda: writing.wants_checkpoint(5))
    node.send(HaltAt(2, 6))
    assert not answer()
    assert writing.wants_checkpoint(6)
    assert writing.record_checkpoint(6)
    assert node.receive() == Checkpointed(6, asked=2)


def test_a_checkpoint_that_nobody_asked_for_ends_nothing(node: NodeEnd, end: PlannedEnd) -> None:
    assert not end.record_checkpoint(100)
    assert node.receive() == Checkpointed(100, asked=0)


def test_who_asks_after_every_tenth_step_stands_still_there(node: NodeEnd, writing: PlannedEnd) -> None:
    """A rank that has passed its last question comes to the same one as those that wait there."""
    for step in (10, 20):
        assert not writing.wants_checkpoint(step)
    assert node.ask(HaltAt(1, BEFORE_NAMED)) == Halted(30, 1)
    node.send(HaltAt(2, 27))  # as ranks promise that have asked only once
    assert in_a_thread(lambda: writing.wants_checkpoint(30))()


def test_what_is_kept_is_saved_before_the_script_writes(node: NodeEnd) -> None:
    saved: list[bool] = []
    end = PlannedEnd(node.channel)
    end.halt_between_steps(-1, lambda: saved.append(True), lambda _: None)
    end.listen()
    assert end.wait_after_step(0) is None
    end.expect_checkpoints()
    node.receive()
    assert node.ask(HaltAt(1, BEFORE_NAMED)) == Halted(1, 1)
    assert end.wait_after_step(1) is None, "it stands still where the script asks, and not before"
    answer = in_a_thread(lambda: end.wants_checkpoint(1))
    node.send(HaltAt(2, 1))
    assert answer()
    assert saved == [True]


def test_who_keeps_nothing_and_writes_nothing_is_not_waited_for(node: NodeEnd, end: PlannedEnd) -> None:
    assert isinstance(node.ask(HaltAt(1, BEFORE_NAMED)), NotSaved)
    assert node.ask(SaveNow(2)) == NotSaved("", 2)
    assert end.wait_after_step(3) is None


def test_if_no_step_will_be_named_training_goes_on(node: NodeEnd, writing: PlannedEnd) -> None:
    node.ask(HaltAt(1, BEFORE_NAMED))
    answer = in_a_thread(lambda: writing.wants_checkpoint(0))
    assert node.ask(SaveNow(2)) == NotSaved("", 2)
    assert not answer()


def test_when_its_node_is_gone_training_goes_on(node: NodeEnd, writing: PlannedEnd) -> None:
    node.ask(HaltAt(1, BEFORE_NAMED))
    answer = in_a_thread(lambda: writing.wants_checkpoint(0))
    node.close()
    assert not answer()


def test_a_script_that_is_over_writes_no_checkpoint(node: NodeEnd, writing: PlannedEnd) -> None:
    assert not writing.wants_checkpoint(9)
    writing.end_training()
    assert node.ask(HaltAt(1, BEFORE_NAMED)) == Halted(9, 1)
    assert node.ask(HaltAt(2, 9)) == NotSaved("training has ended", 2)


@pytest.mark.parametrize("step", [-1, 2**53, 1.5, "4", None])
def test_a_checkpoint_of_what_is_no_step_is_refused_in_the_script(step: Any) -> None:
    with pytest.raises(ValueError, match="a step must be a whole number from 0"):
        checkpointed(step)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_a_worker_that_outlives_its_signal_ends_after_its_last_checkpoint(
    node: NodeEnd, writing: PlannedEnd, monkeypatch: pytest.MonkeyPatch, handler: Any
) -> None:
    """Its node ends it when it has the report, and it may have a handler of its own."""
    monkeypatch.setattr(checkpoints, "_planned_end", writing)
    monkeypatch.setattr(checkpoints, "_by_collective", False)
    monkeypatch.setattr(STOP_REQUEST, "received", False)

    def kill_after_report() -> bool:
        report = node.receive()
        os.kill(os.getpid(), signal.SIGTERM)
        return report == Checkpointed(4, 2)

    node.ask(HaltAt(1, BEFORE_NAMED))
    node.send(HaltAt(2, 4))
    before = signal.signal(signal.SIGTERM, handler)
    try:
        assert writing.wants_checkpoint(4)
        ends = in_a_thread(kill_after_report)
        with pytest.raises(SystemExit):
            checkpointed(4)
        assert ends()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_who_stands_still_goes_on_if_the_thread_that_listens_fails(
    node: NodeEnd, caplog: pytest.LogCaptureFixture
) -> None:
    """Its node knows it at once, and waits for no answer."""

    def fail(*_: object) -> None:
        raise AttributeError("no such thing")

    end = PlannedEnd(node.channel)
    end.halt_between_steps(0, lambda: None, lambda _: None)
    end.listen(fail)
    assert node.ask(HaltAt(1, BEFORE_NAMED)) == Halted(1, 1)
    goes_on = in_a_thread(lambda: end.wait_after_step(1) is None)
    node.send(SaveNow(2))
    assert goes_on()
    with pytest.raises(ChannelError):
        node.receive()
    assert "the state of this worker is not kept any more: AttributeError('no such thing')" in caplog.text
