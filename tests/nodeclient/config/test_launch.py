"""The settings that `nodeclient run` and `nodeclient launch` make of torchrun's flags.

Another test checks that they know all.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coordinatord.protocol.fields import RANKS_MAX
from coordinatord.protocol.ip_addresses import Endpoint
from nodeclient.access.keyring import CREDENTIAL, VARIABLE
from nodeclient.config.join_config import JoinConfig
from nodeclient.config.parse import parse
from tests.support.builders import given_spec

SCRIPT = __file__
PYTHON = sys.executable
AT = ("--nnodes", "2", "--rdzv-endpoint", "10.0.0.1:29400", "--rdzv-id", "mnist")


def run(*arguments: str, front_end: str = "run", **environ: str) -> JoinConfig:
    config = parse([front_end, *arguments], {"PATH": "/usr/bin:/bin", **environ})
    assert isinstance(config, JoinConfig)
    return config


def script(*flags: str, **environ: str) -> JoinConfig:
    return run(*flags, SCRIPT, **environ)


def test_a_script_alone_is_a_job_of_one_worker_on_this_host() -> None:
    config = run(SCRIPT, "--lr", "3", "--nnodes", "7", "--n", "1")
    assert (config.standalone, config.coordinators, config.spec) == (True, (), given_spec(1, 1, 0))
    assert (config.workers, config.job, config.role, config.remarks) == (1, "default", "default", ())
    assert config.command == (PYTHON, "-u", SCRIPT, "--lr", "3", "--nnodes", "7", "--n", "1")
    assert (config.join_timeout_s, config.stop_timeout_s, config.abort_timeout_s) == (600, 30, 0.5)


def test_a_job_of_several_hosts_is_one_of_join() -> None:
    config = script(*AT, "--nnodes", "1:4", "--nproc-per-node", "8", "--max-restarts", "3", "--node-rank", "2")
    assert (config.standalone, config.coordinators) == (False, (Endpoint("10.0.0.1", 29400),))
    assert (config.spec, config.workers, config.job, config.group_rank) == (given_spec(1, 4, 3), 8, "mnist", 2)
    assert (config.own_coordinator, config.remarks) == (False, ())


def test_our_own_names_of_things_are_understood_too() -> None:
    config = script("--nnodes", "2:", "--coord", "a,b:1", "--job-id", "j", "--advertise-addr", "127.0.0.9")
    assert config.coordinators == (Endpoint("a", 29400), Endpoint("b", 1))
    assert (config.spec, config.job, config.advertise_address) == (given_spec(2, RANKS_MAX, 0), "j", "127.0.0.9")
    config = script("--node-id", "n", "--topology", "rack1", "--log-level", "debug", "--join-timeout", "5")
    assert (config.node, config.topology, config.log_level, config.join_timeout_s) == ("n", "rack1", "debug", 5)


def test_what_torchrun_has_is_read_from_its_variables_and_what_is_ours_from_ours() -> None:
    environ = {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "h", "NODECLIENT_NNODES": "9", "NODECLIENT_COORD": "g"}
    config = script(**environ, PET_TOPOLOGY="a", NODECLIENT_TOPOLOGY="b")
    assert (config.spec, config.coordinators, config.topology) == (given_spec(2, 2, 0), (Endpoint("h", 29400),), "b")


def test_a_remark_names_a_flag_as_torchrun_does() -> None:
    [remark] = script("--local-addr", "127.0.0.1").remarks
    assert remark.startswith("--local-addr 127.0.0.1 is of loopback")


# Where nodes meet


@pytest.mark.parametrize(
    "flags",
    [
        ("--standalone",),
        ("--standalone", "--nnodes", "1:4"),
        ("--nnodes", "1"),
        ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
        ("--rdzv-backend", "c10d"),
        ("--rdzv-backend", "static"),
        ("--rdzv-backend", "etcd"),
        ("--master-port", "29501"),
        ("--nnodes", "1", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", "29500"),
        ("--rdzv-endpoint", ""),
    ],
)
def test_a_job_on_one_host_brings_a_coordinator_of_its_own(flags: tuple[str, ...]) -> None:
    config = script(*flags)
    assert (config.standalone, config.coordinators, config.group_rank) == (True, (), None)
    assert not config.own_coordinator
    named = {"--rdzv-backend", "--master-port"} & {*flags}
    assert len(config.remarks) == bool(named)
    assert all("not needed" in remark for remark in config.remarks)


def test_standalone_wins_over_an_endpoint_and_says_so() -> None:
    config = script("--standalone", "--rdzv-endpoint", "h:1", "--rdzv-id", "j")
    assert (config.standalone, config.coordinators, config.job) == (True, (), "j")
    assert config.remarks == ("--standalone: h:1 is not used",)


def test_who_gives_a_token_gets_no_coordinator_in_the_clear(tmp_path: Path) -> None:
    c10d = (*AT, "--rdzv-backend", "c10d")
    (tmp_path / CREDENTIAL).touch()
    file = ("--token-file", str(tmp_path / "token"))
    given: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
        (file, {}),
        ((), {VARIABLE: "t"}),
        ((), {"CREDENTIALS_DIRECTORY": str(tmp_path)}),
    )
    for flags, environ in given:
        config = script(*c10d, *flags, **environ)
        assert config.access.is_given
        assert not config.own_coordinator
        assert config.remarks[-1].startswith("a token was given, so this node brings no coordinator along")
        assert script(*c10d, *flags, "--insecure", **environ).own_coordinator
    assert script(*c10d, CREDENTIALS_DIRECTORY=str(tmp_path / "none")).own_coordinator


@pytest.mark.parametrize(("is_host", "own"), [("1", True), ("true", True), ("0", False), ("No", False)])
def test_who_may_bring_the_coordinator_along_can_be_said_as_for_c10d(is_host: str, own: bool) -> None:
    for backend in ("c10d", "coordinatord"):
        config = script(*AT, "--rdzv-backend", backend, "--rdzv-conf", f"is_host={is_host}")
        assert config.own_coordinator is own


STATIC = ("--nnodes", "2", "--rdzv-backend", "static")
MASTER = ("--nnodes", "2", "--master-addr", "10.0.0.7")


@pytest.mark.parametrize(
    ("flags", "endpoint", "own", "remark"),
    [
        ((*AT, "--rdzv-backend", "c10d"), AT[3], True, f"c10d: coordinatord at {AT[3]} takes its place, "),
        (("--nnodes", "1:2", "--rdzv-backend", "c10d"), "localhost:29400", True, "c10d: "),
        (
            (*AT, "--rdzv-backend", "etcd"),
            AT[3],
            False,
            f"etcd: no etcd is used, but coordinatord, which is expected at {AT[3]}",
        ),
        ((*AT, "--rdzv-backend", "etcd-v2"), AT[3], False, "etcd-v2: no etcd is used, but coordinatord, which is"),
        (MASTER, "10.0.0.7:29500", True, "static: coordinatord at 10.0.0.7:29500 takes its place"),
        ((*MASTER, "--rdzv-backend", "static", "--master-port", "1234"), "10.0.0.7:1234", True, "static: "),
        (STATIC, "127.0.0.1:29500", True, "static: "),
        ((*STATIC, "--master-addr", "[::1]"), "[::1]:29500", True, "static: "),
        ((*STATIC, "--rdzv-endpoint", "h:5", "--master-addr", "g"), "h:5", True, "static: "),
    ],
)
def test_a_backend_of_torchrun_is_replaced_by_a_coordinator_at_its_place(
    flags: tuple[str, ...], endpoint: str, own: bool, remark: str
) -> None:
    config = script(*flags, "--rdzv-id", "j")
    assert (list(map(str, config.coordinators)), config.own_coordinator) == ([endpoint], own)
    [said] = config.remarks
    assert said.startswith(f"--rdzv-backend {remark}")
    assert config.group_rank == (0 if remark.startswith("static") else None)


def test_what_kubeflow_sets_is_enough() -> None:
    environ = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "4", "PET_NODE_RANK": "1"}
    config = script(**environ, PET_MASTER_ADDR="job-master-0", PET_MASTER_PORT="23456")
    assert (config.coordinators, config.own_coordinator) == ((Endpoint("job-master-0", 23456),), True)
    assert (config.spec, config.workers, config.group_rank) == (given_spec(2, 2, 0), 4, 1)


def test_a_job_without_an_id_is_the_default_one_and_where_others_may_be_it_is_said() -> None:
    flags = ("--nnodes", "2", "--coord", "h", "--rdzv-id", "none")
    config = script(*flags)
    assert config.job == "default"
    assert config.remarks == ("no --rdzv-id: this is the job default, and all nodes without an id train together",)


SRUN = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "4", "SLURM_NODEID": "2"}


def test_static_goes_by_the_schedulers_ranks_where_none_are_given_by_hand() -> None:
    flags = ("--nnodes", "4", "--master-addr", "10.0.0.7")
    assert script(*flags, **SRUN).group_rank == 2
    assert script(*flags, "--node-rank", "3", **SRUN).group_rank == 3


def test_a_node_that_trains_alone_among_the_schedulers_many_says_so() -> None:
    config = script(**SRUN)
    assert (config.standalone, config.spec) == (True, given_spec(1, 1, 0))
    [remark] = config.remarks
    assert remark.startswith("SLURM_STEP_NUM_NODES is 4, but without --rdzv-endpoint")
    assert script("--standalone", **SRUN).remarks == ()
    assert script("--nnodes", "1", **SRUN).remarks == ()
    assert script(**SRUN, SLURM_STEP_NUM_TASKS="16").remarks == ()
    assert script(**{**SRUN, "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0"}).remarks == ()


# Rendezvous configuration


@pytest.mark.parametrize(
    ("conf", "remarks"),
    [
        (
            "join_timeout=90,last_call_timeout=5,keep_alive_interval=2,read_timeout=9",
            (
                "here last_call_timeout is coordinatord's --settle, keep_alive_interval is coordinatord's --heartbeat, "
                "read_timeout is not needed"
            ),
        ),
        ("timeout=5", "here timeout is ignored, as by torchrun's c10d"),
        ("join_timout=3", "no backend knows the key 'join_timout', it has no effect; did you mean join_timeout?"),
        ("colour=red", "no backend knows the key 'colour', it has no effect"),
    ],
)
def test_a_key_without_its_effect_in_torchrun_is_remarked_on(conf: str, remarks: str) -> None:
    assert f"--rdzv-conf: {remarks}" in script(*AT, "--rdzv-backend", "c10d", "--rdzv-conf", conf).remarks


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--rdzv-conf", "timeout=80"), 80),
        (("--rdzv-conf", "timeout=80,join_timeout=70"), 70),
        (("--rdzv-conf", "timeout=80", "--rdzv-backend", "etcd"), 80),
        (("--rdzv-conf", "timeout=5", "--rdzv-backend", "c10d"), 600),
        (("--rdzv-conf", "timeout=5,join_timeout=70", "--rdzv-backend", "etcd-v2"), 70),
        (("--rdzv-conf", "join_timeout=70", "--join-timeout", "60"), 60),
    ],
)
def test_how_long_a_node_waits_is_said_in_one_of_three_ways(flags: tuple[str, ...], expected: float) -> None:
    assert script(*AT, *flags).join_timeout_s == expected


# Times, signals, levels


def test_one_shutdown_timeout_is_for_every_stop() -> None:
    config = script("--shutdown-timeout", "300")
    assert (config.stop_timeout_s, config.abort_timeout_s) == (300, 300)
    config = script(TORCH_ELASTIC_SHUTDOWN_TIMEOUT="7")
    assert (config.stop_timeout_s, config.abort_timeout_s) == (7, 7)
    config = script(PET_SHUTDOWN_TIMEOUT="8", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="7")
    assert (config.stop_timeout_s, config.abort_timeout_s) == (8, 8)
    config = script("--shutdown-timeout", "0", "--stop-timeout", "9")
    assert (config.stop_timeout_s, config.abort_timeout_s) == (9, 0)
    config = script("--shutdown-timeout", "300", "--abort-timeout", "1")
    assert (config.stop_timeout_s, config.abort_timeout_s) == (300, 1)


def test_signals_are_named_by_flag_or_by_either_variable() -> None:
    usual = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    assert script().signals == usual
    assert script("--signals-to-handle", "SIGUSR1", PET_SIGNALS_TO_HANDLE="SIGUSR2").signals == (signal.SIGUSR1,)
    assert script(TORCHELASTIC_SIGNALS_TO_HANDLE="SIGTERM,SIGUSR2").signals == (signal.SIGTERM, signal.SIGUSR2)


@pytest.mark.parametrize(
    ("said", "level"), [("DEBUG", "debug"), ("warn", "warning"), ("WARNING", "warning"), ("CRITICAL", "error")]
)
def test_loglevel_is_gone_by_unless_a_flag_says_more(said: str, level: str) -> None:
    assert script(LOGLEVEL=said).log_level == level
    assert script("--log-level", "info", LOGLEVEL=said).log_level == "info"
    assert script(NODECLIENT_LOG_LEVEL="info", LOGLEVEL=said).log_level == "info"
    remark = "LOGLEVEL is 'trace', which is not known here: see --log-level"
    assert (script(LOGLEVEL="trace").log_level, script(LOGLEVEL="trace").remarks) == ("info", (remark,))


# What is run


def test_what_is_run_is_python_unless_it_is_said_otherwise() -> None:
    assert run("-m", "pkg.train", "-m", "x").command == (PYTHON, "-u", "-m", "pkg.train", "-m", "x")
    assert run("--no-python", "true", "x").command == ("true", "x")
    assert run(SCRIPT, PYTHON_EXEC="/bin/sh").command == ("/bin/sh", "-u", SCRIPT)
    assert run("-m", "pkg", PYTHON_EXEC="").command[0] == PYTHON


@pytest.mark.slow
def test_run_path_gives_the_script_its_name_and_arguments(tmp_path: Path) -> None:
    shown = tmp_path / "shown.py"
    shown.write_text("import sys\nprint(__name__, sys.argv)\n")
    command = run("--run-path", "--no-python", "--module", str(shown), "-x", "1").command
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == f"__main__ {[str(shown), '-x', '1']}\n"


@pytest.mark.parametrize(
    ("spelt", "flag"),
    [
        ("'--local_rank'", "--local_rank"),
        ("'--local-rank'", "--local-rank"),
        ("'--local_rank', '--local-rank'", "--local-rank"),
        ("'--lr'", "--local-rank"),
    ],
)
def test_a_script_is_given_its_local_rank_as_it_spells_the_flag(
    spelt: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "pkg" / "train.py"
    script.parent.mkdir()
    script.write_text(f"parser.add_argument({spelt}, type=int)")
    assert run(str(script), "a", front_end="launch").command[3] == flag + "=${local_rank}"
    monkeypatch.chdir(tmp_path)
    assert run("-m", "pkg.train", "a", front_end="launch").command[4] == flag + "=${local_rank}"


def test_launch_gives_the_local_rank_before_the_scripts_own_arguments() -> None:
    assert run(SCRIPT, "a", front_end="launch").command == (PYTHON, "-u", SCRIPT, "--local-rank=${local_rank}", "a")
    module = run("-m", "pkg", "a", front_end="launch").command
    assert module == (PYTHON, "-u", "-m", "pkg", "--local-rank=${local_rank}", "a")
    for flag in ("--use-env", "--use_env"):
        assert run(flag, SCRIPT, "a", front_end="launch").command == (PYTHON, "-u", SCRIPT, "a")
    assert run("--use-env", "--no-python", "true", front_end="launch").command == ("true",)


@pytest.mark.parametrize("quote", ["'", '"'])
def test_quotes_around_the_whole_configuration_fall_away(quote: str) -> None:
    assert script(*AT, "--rdzv-conf", f"{quote}close_timeout=1,join_timeout=5{quote}").join_timeout_s == 5


def test_the_logs_specs_that_torchrun_has_by_default_may_be_named() -> None:
    assert script(*AT, "--logs-specs", "default").output == script(*AT).output
