"""What a worker of a round is started with."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from signal import Signals
from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.protocol.messages import Assignment, JobSpec
from nodeclient.config.join_config import JoinConfig
from nodeclient.core.effects import Start
from nodeclient.host.devices import Host
from nodeclient.host.numa import BindingError
from nodeclient.output.output import WorkerStreams
from nodeclient.shell.worker_command import CommandBuilder, LaunchError
from nodeclient.workers.spawn import WorkerCommand
from tests.support.machines import Machine, write
from workerlib.contract.env import WorkerEnvironment

CONFIG = JoinConfig(
    coordinators=(),
    standalone=True,
    job="mnist",
    node="gpu7",
    spec=JobSpec(1, 2, 3),
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


NOWHERE = Host(Path("/nowhere"), Path("/nowhere"), "no-such-library", Path("/nowhere"))
"""A host without any information."""


def commands(
    inherited: Mapping[str, str] | None = None, begin: Start | None = None, host: Host = NOWHERE, **settings: Any
) -> list[WorkerCommand]:
    """Return the commands of a node that is configured so."""
    config = replace(CONFIG, **settings)
    streams = [WorkerStreams(1, 2, Path(f"/logs/{rank}/error.json"), {}) for rank in range(config.workers)]
    return CommandBuilder(config, inherited or {}, host).commands(begin or start(), streams, [{}] * config.workers)


def test_what_a_worker_gets_about_its_screen_gives_way_to_the_user_s_own_settings() -> None:
    screen = {"COLUMNS": "70", "LINES": "24"}
    launcher = CommandBuilder(replace(CONFIG, workers=1), {"COLUMNS": "132"}, NOWHERE)
    [command] = launcher.commands(start(), [WorkerStreams(1, 2, Path("error.json"), screen)], [{}])
    assert (command.environ["COLUMNS"], command.environ["LINES"]) == ("132", "24")


def environs(inherited: Mapping[str, str] | None = None, **settings: Any) -> list[Mapping[str, str]]:
    return [command.environ for command in commands(inherited, **settings)]


def values(variable: str, inherited: Mapping[str, str] | None = None, **settings: Any) -> list[str | None]:
    return [environ.get(variable) for environ in environs(inherited, **settings)]


def test_each_worker_gets_the_command_and_its_own_ranks() -> None:
    found = commands({"HOME": "/home/a"})
    assert [command.argv for command in found] == [CONFIG.command] * 2
    read = [WorkerEnvironment.from_environ(command.environ) for command in found]
    assert [(environ.rank, environ.local_rank, environ.role_rank) for environ in read] == [(4, 0, 1), (5, 1, 2)]
    assert {(environ.world_size, environ.local_world_size, environ.group_rank, environ.round) for environ in read} == {
        (6, 2, 1, 7)
    }
    assert {(environ.node, environ.restart_count, environ.reason) for environ in read} == {
        ("gpu7", 1, "lost node gpu3")
    }


def test_what_is_inherited_stays_unless_the_contract_says_otherwise() -> None:
    inherited = {"HOME": "/home/a", "RANK": "99", "PYTHONUNBUFFERED": "", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    environ = environs(inherited)[0]
    assert environ["HOME"] == "/home/a"
    assert environ["RANK"] == "4"
    assert environ["PYTHONUNBUFFERED"] == ""
    assert environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


def test_every_variable_that_torchrun_sets_is_set() -> None:
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("needs torch, to be read")
    agent = Path(torch.origin).with_name("distributed") / "elastic/agent/server/local_elastic_agent.py"
    environment = agent.read_text().partition("worker_env = {")[2].partition("}\n")[0]
    theirs = set(re.findall(r'"([A-Z_]+)": ', environment)) | {"LOCAL_RANK", "TORCHELASTIC_ERROR_FILE"}
    assert len(theirs) >= 16
    assert theirs - environs()[0].keys() == set()


def test_each_worker_has_an_error_file_and_none_that_of_the_node() -> None:
    files = values("TORCHELASTIC_ERROR_FILE", {"TORCHELASTIC_ERROR_FILE": "/reports/job.json"})
    assert files == ["/logs/0/error.json", "/logs/1/error.json"]


def test_the_signals_of_the_node_are_passed_on_as_torchrun_does() -> None:
    found = values("TORCHELASTIC_SIGNALS_TO_HANDLE", signals=(Signals.SIGTERM, Signals.SIGUSR1))
    assert found == ["SIGTERM,SIGUSR1"] * 2


def test_a_named_interface_is_that_of_gloo_and_nccl_unless_the_user_has_set_theirs() -> None:
    assert values("GLOO_SOCKET_IFNAME") == [None, None], "loopback is no interface for gloo"
    assert values("GLOO_SOCKET_IFNAME", {"GLOO_SOCKET_IFNAME": "ib0"}, begin=start("192.0.2.1")) == ["ib0"] * 2
    for begin in (start(), start("192.0.2.1")):
        assert values("GLOO_SOCKET_IFNAME", begin=begin, interface="wg0") == ["wg0"] * 2
        assert values("NCCL_SOCKET_IFNAME", begin=begin, interface="wg0") == ["=wg0"] * 2
    theirs = {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "ib"}
    assert values("GLOO_SOCKET_IFNAME", theirs, interface="wg0") == ["ib0"] * 2
    assert values("NCCL_SOCKET_IFNAME", theirs, interface="wg0") == ["ib"] * 2
    assert values("NCCL_SOCKET_IFNAME") == [None] * 2


# Arguments


def test_the_macro_for_the_local_rank_is_filled_in_and_nothing_else_with_a_dollar() -> None:
    command = ("${local_rank}", "a${local_rank}b${local_rank}", "$$ $local_rank ${HOME} $")
    found = commands(command=command)
    assert [argv.argv[1] for argv in found] == ["a0b0", "a1b1"]
    assert {(argv.argv[0], argv.argv[2]) for argv in found} == {("${local_rank}", command[2])}


def test_the_local_rank_as_an_argument_is_the_real_one_also_where_the_variable_is_virtual() -> None:
    for virtual in (False, True):
        found = commands(command=("python", "train.py", "--local-rank=${local_rank}"), virtual_local_rank=virtual)
        assert [command.argv[2] for command in found] == ["--local-rank=0", "--local-rank=1"]


# GPUs


def test_a_virtual_local_rank_is_0_and_each_worker_sees_its_own_gpu() -> None:
    found = environs(virtual_local_rank=True)
    names = "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "RANK", "COORDINATORD_WORKER"
    assert [[environ[name] for name in names] for environ in found] == [["0", "0", "4", "0"], ["0", "1", "5", "1"]]


@pytest.mark.parametrize(
    ("listed", "own"),
    [
        ("3,5,7", ["3", "5"]),
        ("GPU-a1, GPU-b2", ["GPU-a1", "GPU-b2"]),
        ("MIG-a,MIG-b", ["MIG-a", "MIG-b"]),
        ("", [""] * 2),
    ],
)
def test_a_list_of_gpus_is_dealt_out(listed: str, own: list[str]) -> None:
    assert values("CUDA_VISIBLE_DEVICES", {"CUDA_VISIBLE_DEVICES": listed}, virtual_local_rank=True) == own
    assert values("CUDA_VISIBLE_DEVICES", {"CUDA_VISIBLE_DEVICES": listed}) == [listed] * 2


def test_amd_s_own_list_is_dealt_out_too_and_one_that_is_too_short_is_named() -> None:
    assert values("HIP_VISIBLE_DEVICES", {"HIP_VISIBLE_DEVICES": "6,7"}, virtual_local_rank=True) == ["6", "7"]
    with pytest.raises(LaunchError, match=r"CUDA_VISIBLE_DEVICES=3 has none for local rank 1"):
        commands({"CUDA_VISIBLE_DEVICES": "3"}, virtual_local_rank=True)


# CPUs

BIG = Machine(sockets=2, cores_per_complex=6, threads_per_core=2, gpu_nodes=(0, 0, 1))
"""12 cores with 24 threads."""


@pytest.fixture
def big(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Return a big host, on which we may run everywhere."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(BIG.cpus))
    return BIG.build(tmp_path)


def test_the_cores_are_divided_among_the_workers_and_that_is_said(big: Host) -> None:
    config = replace(CONFIG, workers=5)
    launcher = CommandBuilder(config, {}, big)
    assert launcher.remarks == ("OMP_NUM_THREADS is not set: each of 5 workers gets 2 threads, 12 cores divided by 5",)
    assert values("OMP_NUM_THREADS", host=big, workers=5) == ["2"] * 5
    assert values("OMP_NUM_THREADS", host=big, workers=30) == ["1"] * 30


def test_no_worker_gets_more_threads_than_its_container_has_time_for(big: Host) -> None:
    write(big.processes / "self/cgroup", "0::/")
    write(big.system / "fs/cgroup/cpu.max", "450000 100000")
    [remark] = CommandBuilder(CONFIG, {}, big).remarks
    assert remark.endswith("each of 2 workers gets 2 threads, 4.5 CPUs of the quota of its control group divided by 2")
    assert values("OMP_NUM_THREADS", host=big) == ["2"] * 2
    write(big.system / "fs/cgroup/cpu.max", "100000 100000")
    assert (
        "gets 1 thread, 1 CPU of the quota of its control group divided by 2"
        in CommandBuilder(CONFIG, {}, big).remarks[0]
    )


def test_a_number_of_threads_that_is_set_stands_and_a_single_worker_has_all(big: Host) -> None:
    assert values("OMP_NUM_THREADS", {"OMP_NUM_THREADS": "7"}, host=big) == ["7"] * 2
    assert values("OMP_NUM_THREADS", host=big, workers=1) == [None]
    assert CommandBuilder(CONFIG, {"OMP_NUM_THREADS": ""}, big).remarks == ()
    assert CommandBuilder(replace(CONFIG, workers=1), {}, big).remarks == ()


def test_only_bound_workers_get_the_cores_that_they_are_bound_to(big: Host) -> None:
    assert [command.cpus for command in commands(host=big)] == [None, None]
    found = commands(host=big, workers=3, numa="node")
    assert [command.cpus for command in found] == [BIG.of_node(0), BIG.of_node(0), BIG.of_node(1)]
    assert [command.environ["OMP_NUM_THREADS"] for command in found] == ["3", "3", "6"]
    assert CommandBuilder(replace(CONFIG, workers=3, numa="node"), {}, big).remarks == (
        "--numa-binding node, CPUs by local rank: 0: 0-5,12-17; 1: 0-5,12-17; 2: 6-11,18-23",
        "OMP_NUM_THREADS is not set: each of 3 workers gets 3 to 6 threads, 12 cores divided by 3",
    )


def test_a_binding_that_cannot_be_is_a_launch_that_cannot_be(big: Host) -> None:
    with pytest.raises(BindingError, match="--numa-binding exclusive gives no two workers the same core"):
        CommandBuilder(replace(CONFIG, workers=99, numa="exclusive"), {}, big)


def test_what_the_locale_of_this_host_has_no_letters_for_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsencode", lambda text: text.encode("latin-1", "surrogateescape"))
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "latin-1")
    reason = "loss is \u221e, größer, raw \udcff"
    began = replace(start(), reason=reason)
    [worker, _] = commands(begin=began)
    assert worker.environ["COORDINATORD_REASON"] == "loss is \\u221e, größer, raw \\udcff"
    assert worker.environ["COORDINATORD_JOB"] == "mnist"
