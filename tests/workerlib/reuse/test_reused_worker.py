"""A worker between two rounds: what it is told of the next one before it takes part in it."""

import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from dataclasses import dataclass
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
from tests.support.programs import wait_until
from tests.support.torch_names import skip_without
from tests.support.worker_channels import connected
from tests.workerlib.test_init import SOLO
from workerlib import progress
from workerlib.contract.channel_messages import DESCRIPTORS_MAX
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
from workerlib.reuse.reused_worker import STEPLESS_ROUNDS_MAX, ReusedWorker, round_channel

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Stage:
    """A worker of round 1, and the end of its connection that nodeclient has."""

    worker: ReusedWorker
    node: socket.socket

    def send(self, message: RoundMessage, *files: int) -> None:
        """Send a message, and wait until the thread of the worker that listens has read it."""
        socket.send_fds(self.node, [ROUND_CODEC.encode(message)], files)
        wait_until("the message is read", lambda: ioctl(self.node, termios.TIOCOUTQ, bytes(4)) == bytes(4))

    def received(self) -> RoundMessage:
        """Return the next message of the worker."""
        return ROUND_CODEC.decode(self.node.recv(PACKET_BYTES))


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Stage]:
    """Connect a worker to this test, which plays its nodeclient and has heard that it can stay."""
    with connected(tmp_path, round_channel, SOLO) as (line, node):
        node.recv(PACKET_BYTES)
        yield Stage(ReusedWorker(line, 1), node)


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


@pytest.fixture
def on(new: Stage, keeper: StepKeeper) -> Stage:
    """Have the worker keep state."""
    new.worker.record_keeper(keeper)
    return new


def lost() -> RuntimeError:
    """Return the error of a collective whose peer has gone."""
    return RuntimeError("gloo/transport/tcp/pair.cc: Connection closed by peer")


def test_a_round_that_is_over_before_the_worker_has_taken_it_is_left(new: Stage) -> None:
    """Its node would wait for `--abort-timeout`, and end a worker that could have stayed."""
    new.send(NextRound(2, {}), 1, 2)  # the streams that this process has already
    new.send(AskToLeave(2))
    new.worker.enter_next_round()
    answer = new.received()
    assert isinstance(answer, Refusing), "nothing was given to ctx.keep"
    assert answer.round == 2


def test_there_is_no_next_round_when_nodeclient_has_gone(new: Stage) -> None:
    new.node.close()
    with pytest.raises(SystemExit, match="no next round for this worker: the connection to nodeclient has ended"):
        new.worker.enter_next_round()


def test_a_worker_that_cannot_take_its_next_round_knows_why(new: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """More descriptors than it takes are cut in the same way as where it has too many files open."""
    new.send(NextRound(2, {}), *[1] * (DESCRIPTORS_MAX + 1))
    assert new.node.recv(PACKET_BYTES) == b"", "its node knows that it cannot stay"
    with pytest.raises(SystemExit, match="cannot open more files: raise ulimit -n"):
        new.worker.enter_next_round()
    assert "this process cannot go into another round: ChannelError" in caplog.text


@pytest.fixture
def no_step() -> Iterator[None]:
    """Begin and end with no step reported."""
    progress.begin_round()
    yield
    progress.begin_round()


@pytest.mark.usefixtures("no_step")
def test_a_worker_is_not_trusted_with_a_further_round_after_three_without_a_step(on: Stage) -> None:
    for number in range(1, STEPLESS_ROUNDS_MAX):
        assert on.worker.leave_after(lost())
        assert isinstance(on.received(), Failed)
        assert on.received() == Left(number)
        on.send(NextRound(number + 1, {}), 1, 2)
        on.worker.enter_next_round()
    assert not on.worker.leave_after(lost())
    assert on.received() == Refusing(
        STEPLESS_ROUNDS_MAX, f"{STEPLESS_ROUNDS_MAX} rounds in a row have ended without a step"
    )
    progress.step(7)
    assert on.worker.leave_after(lost()), "the round that ends has done a step"


def test_a_round_that_ends_where_gradients_are_off_does_not_leave_them_off(on: Stage) -> None:
    with torch.enable_grad():
        torch.set_grad_enabled(False)
        assert on.worker.leave_after(lost())
        assert torch.is_grad_enabled()


def test_a_script_that_writes_checkpoints_begins_to_do_so_anew_in_its_next_round(on: Stage, keeper: StepKeeper) -> None:
    """A worker that is new in that round agrees with this one on how they are asked for, by a collective."""
    checkpoints.connect(keeper.planned_end)
    assert not checkpoints.should_checkpoint()
    assert on.worker.leave_after(lost())
    checkpoints.check_unused("ctx.keep")  # of the next round, which is called before


def test_an_error_of_the_script_is_said_to_the_node(new: Stage) -> None:
    assert not new.worker.leave_after(ValueError("a mistake"))
    assert new.received() == Refusing(1, "ValueError ended the script in a worker")


@pytest.mark.parametrize("planned", [False, True])
def test_who_saves_at_a_step_of_its_own_choice_refuses_in_a_planned_end_alone(
    on: Stage, planned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_by_collective", False)
    on.send(AskToLeave(1, planned))
    if planned:
        assert on.received() == Refusing(1, "the script saves at a step of its own choice, and ends there")
    else:
        wait_until("the worker is asked to leave", on.worker._round.leave_requested.is_set)
    assert on.worker.leave_after(LeftRoundError())
    if not planned:
        assert on.received() == Left(1)


def test_a_worker_whose_script_holds_a_mesh_is_ended_before_the_next_round(on: Stage) -> None:
    store = HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
    on.send(AskToLeave(1))
    wait_until("the worker is asked to leave", on.worker._round.leave_requested.is_set)
    assert on.worker.leave_after(LeftRoundError())
    refusal = on.received()
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


def test_a_worker_gets_out_of_a_collective_of_a_group_that_the_script_has_made(on: Stage, tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    with subprocess.Popen([sys.executable, "-c", PEER, place], stdin=subprocess.PIPE) as peer:
        patience = timedelta(hours=1)
        with on.worker.making_group():
            store = FileStore(place, 2)
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=patience)
        group = torch.distributed.new_group(timeout=patience)
        on.send(AskToLeave(1))
        with pytest.raises(RuntimeError, match="gloo") as failed:
            torch.distributed.all_reduce(torch.ones(1), group=group)
        assert on.worker.leave_after(failed.value)
        assert on.received() == Left(1)
        peer.kill()
        on.send(NextRound(2, {}), 1, 2)
        on.worker.enter_next_round()  # lets the connections go
        on.worker.end()


def main_thread_waits_for_the_abort() -> bool:
    """Whether the main thread has come to where its groups are aborted, while another thread aborts them."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return frame.f_code.co_name == "_abort_collectives"


def test_groups_are_destroyed_when_they_are_aborted_and_the_node_hears_how_long_that_took(on: Stage) -> None:
    skip_without("torch.distributed.distributed_c10d:_abort_process_group")
    register(lambda: wait_until("the main thread waits", main_thread_waits_for_the_abort))
    torch.distributed.init_process_group(NCCL_LIKE, store=HashStore(), rank=0, world_size=1)
    on.send(AskToLeave(1))
    assert on.received() == Aborting(1)
    assert on.worker.leave_after(LeftRoundError())
    aborted = on.received()
    assert isinstance(aborted, Aborted)
    assert aborted.took_s > 0
    assert on.received() == Left(1)
    assert not torch.distributed.is_initialized()


def test_a_worker_whose_collective_failed_aborts_its_groups_by_itself(on: Stage) -> None:
    skip_without("torch.distributed.distributed_c10d:_abort_process_group")
    register(lambda: None)
    torch.distributed.init_process_group(NCCL_LIKE, store=HashStore(), rank=0, world_size=1)
    assert on.worker.leave_after(RuntimeError("NCCL error: remote process exited"))
    said = [type(on.received()) for _ in range(4)]
    assert said == [Failed, Aborting, Aborted, Left]


def test_a_mesh_that_is_dropped_with_its_round_is_no_obstacle(on: Stage) -> None:
    if hasattr(getattr(torch.distributed.device_mesh, "_mesh_resources", None), "child_to_parent_mapping"):
        pytest.skip("torch 2.4 itself holds a mesh of which a part was taken")
    store = HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    error = error_of_a_round_with_a_mesh()
    on.send(AskToLeave(1))
    wait_until("the worker is asked to leave", on.worker._round.leave_requested.is_set)
    assert on.worker.leave_after(error)
    assert on.received() == Left(1)


def error_of_a_round_with_a_mesh() -> BaseException:
    """Return the error by which a round is left in which a mesh was made."""

    def train() -> None:
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
        torch.distributed.all_reduce(torch.ones(1), group=mesh["b"].get_group())
        raise LeftRoundError

    with pytest.raises(LeftRoundError) as left:
        train()
    return left.value


def test_a_worker_that_takes_no_further_round_says_so_unasked_and_of_one_that_it_was_given(new: Stage) -> None:
    new.send(NextRound(2, {}), 1, 2)
    new.send(AskToLeave(2))
    new.worker.end()
    for number in (1, 2):
        assert new.received() == Refusing(number, "the script has left its loop of rounds")


def test_a_worker_that_has_said_why_it_ends_does_not_say_that_it_has_left_its_loop(new: Stage) -> None:
    assert not new.worker.leave_after(ValueError("a mistake"))
    new.worker.end()
    new.send(AskToLeave(2))
    assert new.received() == Refusing(1, "ValueError ended the script in a worker")
    assert new.received() == Refusing(2, "the script has left its loop of rounds")


def test_a_round_that_the_worker_has_left_behind_is_not_left_again(new: Stage) -> None:
    new.send(NextRound(2, {}), 1, 2)
    new.worker.enter_next_round()
    new.send(AskToLeave(1))
    new.send(AskToLeave(2))
    answer = new.received()
    assert isinstance(answer, Refusing)
    assert answer.round == 2
