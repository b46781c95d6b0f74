"""What a worker of a round is started with."""

from __future__ import annotations

from coordinatord.wire.messages import Assignment, Spec
from nodeclient.config import JoinConfig
from nodeclient.core.effects import Start
from nodeclient.launch import worker_commands
from workerlib.env import WorkerEnvironment

CONFIG = JoinConfig(
    coordinators=(),
    standalone=True,
    job="mnist",
    node="gpu7",
    spec=Spec(1, 2, 3),
    workers=2,
    role="trainer",
    topology="",
    advertise_address=None,
    join_timeout_s=600.0,
    stop_timeout_s=30.0,
    log_level="info",
    command=("python", "train.py", "--epochs", "3"),
)


def start(master_address: str = "127.0.0.1") -> Start:
    part = Assignment(
        group_rank=1,
        group_world_size=2,
        first_rank=4,
        world_size=6,
        first_role_rank=1,
        role_world_size=3,
        master_node="gpu1",
        master_address=master_address,
        master_port=4321,
        master_probe_port=4322,
        restarts_used=1,
        max_restarts=3,
    )
    return Start(run="e-1", round=7, assignment=part, reason="lost node gpu3")


def test_each_worker_gets_the_command_and_its_own_ranks() -> None:
    commands = worker_commands(CONFIG, start(), {"HOME": "/home/a"})
    assert [command.argv for command in commands] == [CONFIG.command] * 2
    read = [WorkerEnvironment.from_environ(command.environ) for command in commands]
    assert [(one.rank, one.local_rank, one.role_rank) for one in read] == [(4, 0, 1), (5, 1, 2)]
    assert {(one.world_size, one.local_world_size, one.group_rank, one.round) for one in read} == {(6, 2, 1, 7)}
    assert read[0].reason == "lost node gpu3"


def test_what_is_inherited_stays_unless_the_contract_says_otherwise() -> None:
    inherited = {"HOME": "/home/a", "RANK": "99", "PYTHONUNBUFFERED": "", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    environ = worker_commands(CONFIG, start(), inherited)[0].environ
    assert environ["HOME"] == "/home/a"
    assert environ["RANK"] == "4"
    assert environ["PYTHONUNBUFFERED"] == ""
    assert environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


def test_gloo_is_not_told_to_listen_on_loopback() -> None:
    assert "GLOO_SOCKET_IFNAME" not in worker_commands(CONFIG, start(), {})[0].environ


def test_the_user_s_choice_of_interface_for_gloo_stands() -> None:
    environ = worker_commands(CONFIG, start("192.0.2.1"), {"GLOO_SOCKET_IFNAME": "ib0"})[0].environ
    assert environ["GLOO_SOCKET_IFNAME"] == "ib0"
