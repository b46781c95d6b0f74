"""Scripts that use KeptWriter and KeptReader in a wrong way: each gets one clear sentence."""

import logging
import socket
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from tests.support.environments import environment
from tests.support.keeping import Keep
from tests.support.programs import wait_until
from workerlib import Context, KeptReader, KeptWriter
from workerlib.contract.env import KEEP
from workerlib.keeping import checkpoints, kept_storage, restoring
from workerlib.keeping.keep_channel import KeepChannel
from workerlib.keeping.kept_errors import KeptStateError

STATE: dict[str, Any] = {"w": torch.ones(4)}


pytestmark = [pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)"), pytest.mark.slow]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keep]:
    """Let this process be the one worker of a node; it forgets all of its connections at the end."""
    keep = Keep(tmp_path, 1)
    for name, value in environment(0, 1, 1, 1).to_environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(KEEP, str(keep.nodes[0].path))
    yield keep
    kept_storage._open_connection.cache_clear()
    if checkpoints._planned_end is not None:
        checkpoints._planned_end.close()
    checkpoints.begin_round()
    keep.close()


@pytest.fixture
def context() -> Context:
    """Return what `init` gives to this worker."""
    return Context(environment(0, 1, 1, 1), torch.device("cpu"))


@pytest.mark.usefixtures("node")
def test_a_reader_and_keep_are_not_mixed(context: Context) -> None:
    assert KeptReader().step == -1
    with pytest.raises(KeptStateError, match=r"ctx\.keep came after KeptReader or KeptWriter: keep state by ctx\.keep"):
        context.keep(model=nn.Linear(2, 2))
    assert KeptReader().step == -1, "it goes on as before"


@pytest.mark.usefixtures("node")
def test_keep_and_a_writer_are_not_mixed(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("workerlib.init"), "_keeper", None)
    context.keep(model=nn.Linear(2, 2))
    with pytest.raises(CheckpointException, match=r"KeptReader or KeptWriter came after ctx\.keep"):
        save(STATE, storage_writer=KeptWriter(1))
    context.close()


def test_a_connection_that_the_node_refuses_is_explained(tmp_path: Path) -> None:
    """A process that a worker has started may make a reader too, or one that is left of an earlier round."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "refuses"))
        listener.listen()
        channel = KeepChannel(str(tmp_path / "refuses"), environment(0, 1, 1, 1))
        listener.accept()[0].close()
        words = "so this worker ends: it has closed the connection, and takes only one from each worker of its round"
        try:
            with pytest.raises(KeptStateError, match=words):
                restoring.request_state(channel)
        finally:
            channel.close()


@pytest.mark.usefixtures("node")
def test_a_reader_without_its_node_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(KEEP, str(tmp_path / "gone"))
    for _ in range(2):
        with pytest.raises(KeptStateError, match=r"nodeclient cannot be reached at .*gone"):
            KeptReader()


@pytest.mark.usefixtures("node")
def test_nothing_is_loaded_where_nothing_is_kept() -> None:
    with pytest.raises(CheckpointException, match=r"no step is kept, .*: load only if the reader's step is >= 0"):
        load(STATE, storage_reader=KeptReader())


@pytest.mark.parametrize("step", [-1, 2**53, 1.5, "a", None])
def test_a_writer_takes_a_step_alone(step: Any) -> None:
    with pytest.raises(ValueError, match=r"a step must be a whole number from 0 to 2\*\*53 - 1, not"):
        KeptWriter(step)


@pytest.mark.usefixtures("node")
def test_a_reader_comes_before_the_first_save() -> None:
    """A save frees the memory of the state that was loaded."""
    save(STATE, storage_writer=KeptWriter(1))
    with pytest.raises(KeptStateError, match="KeptReader came after a save of this round: make it before"):
        KeptReader()


def test_a_save_waits_for_no_memory_once_its_connection_has_ended(node: Keep, caplog: pytest.LogCaptureFixture) -> None:
    node.gives.clear()
    KeptReader()
    connection = kept_storage._open_connection()

    def end() -> None:
        wait_until("the request", lambda: not connection._answered.is_set())
        end_of_node = node.nodes[0].connection
        assert end_of_node is not None
        end_of_node.shutdown(socket.SHUT_RDWR)

    ending = threading.Thread(target=end)
    ending.start()
    save(STATE, storage_writer=KeptWriter(1))
    ending.join()
    node.gives.set()
    assert "and training goes on: the connection to nodeclient has ended" in caplog.text


def test_a_step_that_was_saved_is_not_saved_again(node: Keep, caplog: pytest.LogCaptureFixture) -> None:
    """If another rank saved it only once, the step would come back with two contents."""
    for step, content in ((4, 1.0), (4, 2.0), (3, 3.0), (torch.tensor(5), 5.0)):
        save({"w": torch.full((4,), content)}, storage_writer=KeptWriter(step))  # type: ignore[arg-type]
    assert sorted(commit.step for commit in node.commits(0)) == [4, 5]
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "its step is not higher than that of an earlier save" in warning
