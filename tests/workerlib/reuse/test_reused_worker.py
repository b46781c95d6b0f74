"""A worker between two rounds: what it is told of the next one before it takes part in it."""

import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from fcntl import ioctl
from pathlib import Path

import pytest
import torch
import torch.distributed
from torch._C._distributed_c10d import FileStore, HashStore
from torch.distributed.device_mesh import init_device_mesh

from tests.support.keeping import Keep
from tests.support.nccl_like import NCCL_LIKE, register
from tests.support.programs import TIMEOUT_S, wait_until
from tests.workerlib.test_init import SOLO
from workerlib import progress
from workerlib.contract.env import KEEP
from workerlib.contract.packets import PACKET_BYTES
from workerlib.contract.round_messages import (
    ROUND_CODEC,
    Aborted,
    Aborting,
    AskToLeave,
    Failed,
    Left,
    NextRound,
    Refusing,
    RoundMessage,
)
from workerlib.keeping import checkpoints
from workerlib.keeping.keeper import StepKeeper, keep
from workerlib.keeping.kept_errors import LeftRoundError
from workerlib.reuse.reused_worker import STEPLESS_ROUNDS_MAX, ReusedWorker
from workerlib.reuse.round_channel import RoundChannel

pytestmark = pytest.mark.slow


def connected(folder: Path) -> tuple[RoundChannel, socket.socket]:
    """Connect a worker of round 1 to this test, which plays its nodeclient and has heard that it can stay."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener:
        listener.bind(str(folder / "rounds"))
        listener.listen()
        line = RoundChannel(str(folder / "rounds"), 0, 1)
        node, _ = listener.accept()
    node.settimeout(TIMEOUT_S)
    node.recv(PACKET_BYTES)
    return line, node


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StepKeeper]:
    """Return the keeper of a model, for which this process plays the node too."""
    node = Keep(tmp_path, 1)
    monkeypatch.setenv(KEEP, str(node.nodes[0].path))
    _, made = keep(SOLO, {"model": torch.nn.Linear(3, 2)})
    assert made is not None
    yield made
    made.leave_round()
    node.close()


def send_to(node: socket.socket, message: RoundMessage, *files: int) -> None:
    """Send a message, and wait until the thread of the worker that listens has read it."""
    socket.send_fds(node, [ROUND_CODEC.encode(message)], files)
    wait_until("the message is read", lambda: _unread(node) == 0)


def _unread(node: socket.socket) -> int:
    (number,) = struct.unpack("i", ioctl(node, termios.TIOCOUTQ, bytes(4)))
    return int(number)


def test_a_round_that_is_over_before_the_worker_has_taken_it_is_left(tmp_path: Path) -> None:
    """Its node would wait for `--abort-timeout`, and end a worker that could have stayed."""
    line, node = connected(tmp_path)
    with node:
        worker = ReusedWorker(line, 1)
        send_to(node, NextRound(2, {}), 1, 2)  # the streams that this process has already
        send_to(node, AskToLeave(2))
        worker.enter_next_round()
        answer = ROUND_CODEC.decode(node.recv(PACKET_BYTES))
        assert isinstance(answer, Refusing), "nothing was given to ctx.keep"
        assert answer.round == 2


@pytest.fixture
def no_step() -> Iterator[None]:
    """Begin and end with no step reported."""
    progress.begin_round()
    yield
    progress.begin_round()


@pytest.mark.usefixtures("no_step")
def test_a_worker_is_not_trusted_with_a_further_round_after_three_without_a_step(
    tmp_path: Path, keeper: StepKeeper
) -> None:
    line, node = connected(tmp_path)
    with node:
        worker = ReusedWorker(line, 1)
        worker.record_keeper(keeper)
        lost = RuntimeError("gloo/transport/tcp/pair.cc: Connection closed by peer")
        for number in range(1, STEPLESS_ROUNDS_MAX):
            assert worker.leave_after(lost)
            assert isinstance(received(node), Failed)
            assert received(node) == Left(number)
            send_to(node, NextRound(number + 1, {}), 1, 2)
            worker.enter_next_round()
        assert not worker.leave_after(lost)
        assert received(node) == Refusing(
            STEPLESS_ROUNDS_MAX, f"{STEPLESS_ROUNDS_MAX} rounds in a row have ended without a step"
        )
        progress.step(7)
        assert worker.leave_after(lost), "the round that ends has done a step"


def test_a_round_that_ends_where_gradients_are_off_does_not_leave_them_off(tmp_path: Path, keeper: StepKeeper) -> None:
    line, node = connected(tmp_path)
    with node, torch.enable_grad():
        worker = ReusedWorker(line, 1)
        worker.record_keeper(keeper)
        torch.set_grad_enabled(False)
        assert worker.leave_after(RuntimeError("gloo/transport/tcp/pair.cc: Connection closed by peer"))
        assert torch.is_grad_enabled()


def test_a_script_that_writes_checkpoints_begins_to_do_so_anew_in_its_next_round(
    tmp_path: Path, keeper: StepKeeper
) -> None:
    """A worker that is new in that round agrees with this one on how they are asked for, by a collective."""
    line, node = connected(tmp_path)
    with node:
        worker = ReusedWorker(line, 1)
        worker.record_keeper(keeper)
        checkpoints.connect(keeper.planned_end)
        assert not checkpoints.should_checkpoint()
        assert worker.leave_after(RuntimeError("gloo/transport/tcp/pair.cc: Connection closed by peer"))
        checkpoints.check_unused("ctx.keep")  # of the next round, which is called before


def test_an_error_of_the_script_is_said_to_the_node(tmp_path: Path) -> None:
    line, node = connected(tmp_path)
    with node:
        worker = ReusedWorker(line, 1)
        assert not worker.leave_after(ValueError("a mistake"))
        assert received(node) == Refusing(1, "ValueError ended the script in a worker")


@pytest.mark.parametrize("planned", [False, True])
def test_who_saves_at_a_step_of_its_own_choice_refuses_in_a_planned_end_alone(
    tmp_path: Path, keeper: StepKeeper, planned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, node = connected(tmp_path)
    with node:
        worker = ReusedWorker(line, 1)
        worker.record_keeper(keeper)
        monkeypatch.setattr(checkpoints, "_by_collective", False)
        send_to(node, AskToLeave(1, planned))
        if planned:
            assert received(node) == Refusing(1, "the script saves at a step of its own choice, and ends there")
        else:
            wait_until("the worker is asked to leave", worker._round.leave_requested.is_set)
        assert worker.leave_after(LeftRoundError())
        if not planned:
            assert received(node) == Left(1)


def test_a_worker_whose_script_holds_a_mesh_is_ended_before_the_next_round(tmp_path: Path, keeper: StepKeeper) -> None:
    line, node = connected(tmp_path)
    with node:
        worker = ReusedWorker(line, 1)
        worker.record_keeper(keeper)
        store = HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
        send_to(node, AskToLeave(1))
        wait_until("the worker is asked to leave", worker._round.leave_requested.is_set)
        assert worker.leave_after(LeftRoundError())
        refusal = received(node)
        assert isinstance(refusal, Refusing)
        assert refusal.why.startswith("the script holds a device mesh")
        assert mesh.ndim == 2, "it is held until here"
        assert not torch.distributed.is_initialized()


PEER = """
import sys, torch.distributed as dist
from torch._C._distributed_c10d import FileStore
dist.init_process_group("gloo", store=FileStore(sys.argv[1], 2), rank=1, world_size=2)
dist.new_group()
sys.stdin.readline()
"""
"""Makes a group beside the default one, and comes to no collective."""


def test_a_worker_gets_out_of_a_collective_of_a_group_that_the_script_has_made(
    tmp_path: Path, keeper: StepKeeper
) -> None:
    line, node = connected(tmp_path)
    place = str(tmp_path / "store")
    with node, subprocess.Popen([sys.executable, "-c", PEER, place], stdin=subprocess.PIPE) as peer:
        worker = ReusedWorker(line, 1)
        worker.record_keeper(keeper)
        patience = timedelta(hours=1)
        with worker.making_group():
            store = FileStore(place, 2)
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=patience)
        group = torch.distributed.new_group(timeout=patience)
        send_to(node, AskToLeave(1))
        with pytest.raises(RuntimeError, match="gloo") as failed:
            torch.distributed.all_reduce(torch.ones(1), group=group)
        assert worker.leave_after(failed.value)
        assert received(node) == Left(1)
        peer.kill()
        send_to(node, NextRound(2, {}), 1, 2)
        worker.enter_next_round()  # lets the connections go
        worker.end()


def main_thread_waits_for_the_abort() -> bool:
    """Whether the main thread has come to where its groups are aborted, while another thread aborts them."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return frame.f_code.co_name == "_abort_collectives"


def test_groups_are_destroyed_when_they_are_aborted_and_the_node_hears_how_long_that_took(
    tmp_path: Path, keeper: StepKeeper
) -> None:
    line, node = connected(tmp_path)
    register(lambda: wait_until("the main thread waits", main_thread_waits_for_the_abort))
    with node:
        worker = ReusedWorker(line, 1)
        worker.record_keeper(keeper)
        torch.distributed.init_process_group(NCCL_LIKE, store=HashStore(), rank=0, world_size=1)
        send_to(node, AskToLeave(1))
        assert received(node) == Aborting(1)
        assert worker.leave_after(LeftRoundError())
        aborted = received(node)
        assert isinstance(aborted, Aborted)
        assert aborted.took_s > 0
        assert received(node) == Left(1)
        assert not torch.distributed.is_initialized()


def test_a_worker_whose_collective_failed_aborts_its_groups_by_itself(tmp_path: Path, keeper: StepKeeper) -> None:
    line, node = connected(tmp_path)
    register(lambda: None)
    with node:
        worker = ReusedWorker(line, 1)
        worker.record_keeper(keeper)
        torch.distributed.init_process_group(NCCL_LIKE, store=HashStore(), rank=0, world_size=1)
        assert worker.leave_after(RuntimeError("NCCL error: remote process exited"))
        said = [type(received(node)) for _ in range(4)]
        assert said == [Failed, Aborting, Aborted, Left]


def test_a_mesh_that_is_dropped_with_its_round_is_no_obstacle(tmp_path: Path, keeper: StepKeeper) -> None:
    line, node = connected(tmp_path)
    with node:
        worker = ReusedWorker(line, 1)
        worker.record_keeper(keeper)
        store = HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        error = error_of_a_round_with_a_mesh()
        send_to(node, AskToLeave(1))
        wait_until("the worker is asked to leave", worker._round.leave_requested.is_set)
        assert worker.leave_after(error)
        assert received(node) == Left(1)


def error_of_a_round_with_a_mesh() -> BaseException:
    """Return the error by which a round is left in which a mesh was made."""

    def train() -> None:
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
        torch.distributed.all_reduce(torch.ones(1), group=mesh["b"].get_group())
        raise LeftRoundError

    with pytest.raises(LeftRoundError) as left:
        train()
    return left.value


def received(node: socket.socket) -> RoundMessage:
    """Return the next message of the worker."""
    return ROUND_CODEC.decode(node.recv(PACKET_BYTES))


def test_a_worker_that_takes_no_further_round_says_so_of_one_that_it_was_given(tmp_path: Path) -> None:
    line, node = connected(tmp_path)
    with node:
        worker = ReusedWorker(line, 1)
        send_to(node, NextRound(2, {}), 1, 2)
        send_to(node, AskToLeave(2))
        worker.end()
        assert ROUND_CODEC.decode(node.recv(PACKET_BYTES)) == Refusing(2, "the script has left its loop of rounds")


def test_a_round_that_the_worker_has_left_behind_is_not_left_again(tmp_path: Path) -> None:
    line, node = connected(tmp_path)
    with node:
        worker = ReusedWorker(line, 1)
        send_to(node, NextRound(2, {}), 1, 2)
        worker.enter_next_round()
        send_to(node, AskToLeave(1))
        send_to(node, AskToLeave(2))
        answer = ROUND_CODEC.decode(node.recv(PACKET_BYTES))
        assert isinstance(answer, Refusing)
        assert answer.round == 2
