"""The settings of `nodeclient join`: meanings and defaults; tests of the real program cover errors."""

import signal
import sys
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinatord.protocol.fields import RANKS_MAX
from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.runtime.settings import SettingsError
from nodeclient.config.flag_values import (
    endpoints,
    filter_words,
    hang_timeout,
    laggard_factor,
    local_ranks,
    memory_share,
    node_range,
    pairs,
    signals,
    size,
    slots,
    streams,
)
from nodeclient.config.join_config import JoinConfig
from nodeclient.config.operate import StatusConfig
from nodeclient.config.parse import parse
from nodeclient.host.capacity import memory
from nodeclient.host.devices import Host
from nodeclient.output.output_settings import Choice, OutputSettings, Rotation, Streams
from tests.support.builders import given_spec
from workerlib.contract.env import DIGESTS

PYTHON = sys.executable


def join(*arguments: str, **environ: str) -> JoinConfig:
    config = parse(["join", *arguments, "--", PYTHON, __file__, "--nnodes", "9"], {"PATH": "", **environ})
    assert isinstance(config, JoinConfig)
    return config


def test_the_defaults_need_no_thought() -> None:
    config = join("--coord", "host")
    assert config.coordinators == (Endpoint("host", 29400),)
    assert config.job == "default"
    assert config.spec == given_spec(1, RANKS_MAX, 0)
    assert config.workers >= 1
    assert config.command == (PYTHON, __file__, "--nnodes", "9")
    assert (config.join_timeout_s, config.stop_timeout_s, config.abort_timeout_s) == (600, 30, 0.5)
    assert config.nccl_abort_timeout_s == 3
    assert (config.group_rank, config.numa, config.virtual_local_rank) == (None, None, False)
    assert (config.output, config.log_level) == (OutputSettings(), "info")
    assert (config.own_coordinator, config.error_file) == (False, None)
    assert config.remarks == ("no --job-id: this is the job default, and all nodes without an id train together",)


def test_standalone_is_a_job_of_one_node() -> None:
    assert join("--standalone").spec == given_spec(1, 1, 0)
    config = join("--standalone", "--nnodes", "1:2", NODECLIENT_COORD="host", NODECLIENT_NODE_RANK="0")
    assert (config.spec, config.coordinators, config.group_rank) == (given_spec(1, 2, 0), (), None)


def test_how_much_may_be_kept_is_a_size_or_a_share_of_the_memory() -> None:
    total = memory(Host()).total
    assert join("--standalone").keep_bytes == int(total * 0.25)
    assert join("--standalone", "--keep-memory", "40%").keep_bytes == int(total * 0.4)
    assert join("--standalone", NODECLIENT_KEEP_MEMORY="64GB", NODECLIENT_KEEP_TIMEOUT="7").keep_bytes == 64 * 10**9
    assert join("--standalone", "--keep-memory", "0").keep_bytes == 0
    assert (join("--standalone").keep_timeout_s, join("--standalone", "--keep-timeout", "7").keep_timeout_s) == (30, 7)


def test_a_disk_without_memory_to_keep_state_in_gets_a_remark() -> None:
    line = ("--coord", "h", "--job-id", "j", "--persist", "/kept")
    assert join(*line, "--keep-memory", "0").remarks == (
        "--persist writes nothing, since --keep-memory is 0: it writes what is kept in that memory",
    )
    assert join(*line).remarks == ()


def test_flags_of_the_disk_without_a_directory_get_a_remark() -> None:
    line = ("--coord", "h", "--job-id", "j", "--persist-every", "5m")
    every, keep = ("--persist-every has no effect without --persist", "--persist-keep has no effect without --persist")
    assert join(*line).remarks == (every,)
    assert join(*line, NODECLIENT_PERSIST_KEEP="3").remarks == (every, keep)
    assert join(*line, "--persist", "/kept").remarks == ()


@pytest.mark.parametrize(
    ("flags", "environ", "why"),
    [
        ((), {}, "--max-restarts is 0"),
        (("--max-restarts", "1", "--keep-memory", "0"), {}, "--keep-memory is 0"),
        (("--max-restarts", "1"), {DIGESTS: "0"}, f"{DIGESTS} is 0"),
    ],
)
def test_a_restart_on_divergence_that_can_never_come_gets_a_remark(
    flags: tuple[str, ...], environ: dict[str, str], why: str
) -> None:
    line = ("--coord", "h", "--job-id", "j", *flags)
    assert join(*line, "--on-divergence", "quarantine", **environ).remarks == (
        f"--on-divergence quarantine ends no round, since {why}",
    )
    assert join(*line, **environ).remarks == ()
    assert join("--coord", "h", "--job-id", "j", "--max-restarts", "1", "--on-divergence", "restart").remarks == ()


def test_two_nodeclients_of_a_host_have_names_of_their_own() -> None:
    assert join("--coord", "h").node != join("--coord", "h").node
    assert join("--coord", "h", "--node-id", "gpu7").node == "gpu7"


def test_a_mistake_in_the_environment_of_another_subcommand_is_nobodys_business() -> None:
    environ = {"NODECLIENT_NNODES": "x", "PET_NNODES": "x"}
    assert parse(["status", "--coord", "h"], environ) == StatusConfig(
        None, json=False, coordinators=(Endpoint("h", 29400),)
    )
    assert join("--coord", "h", PET_NNODES="x").spec == given_spec(1, RANKS_MAX, 0)


def test_what_torchrun_says_of_workers_is_said_in_the_same_words() -> None:
    config = join("--coord", "h", "--nnodes", "4", "--node-rank", "3", "--numa-binding", "core-complex")
    assert (config.group_rank, config.numa) == (3, "core-complex")
    config = join("--coord", "h", "--virtual-local-rank", "--signals-to-handle", "SIGTERM,SIGUSR1,SIGTERM")
    assert (config.virtual_local_rank, config.signals) == (True, (signal.SIGTERM, signal.SIGUSR1))
    config = join("--coord", "h", "--stop-timeout", "120", "--abort-timeout", "0")
    assert (config.stop_timeout_s, config.abort_timeout_s, config.nccl_abort_timeout_s) == (120, 0, 0)


def test_what_is_to_be_done_with_the_output() -> None:
    flags = ("--log-dir", "/logs", "-r", "1", "-t", "0:3,12:1", "--local-ranks-filter", "0,12")
    filters = ("--duplicate-stdout-filters", "a,b,,c", "--duplicate-stderr-filters", "Error")
    rotation = ("--log-rotate", "100MB", "--log-rotations-kept", "2")
    assert join(
        "--coord", "h", *flags, *filters, *rotation, TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="[${rank}]"
    ).output == (
        OutputSettings(
            log_dir=Path("/logs"),
            redirects=Choice(Streams.STDOUT),
            tee=Choice(by_local_rank={0: Streams.BOTH, 12: Streams.STDOUT}),
            terminal_ranks=frozenset({0, 12}),
            stdout_filters=("a", "b,c"),
            stderr_filters=("Error",),
            prefix="[${rank}]",
            rotation=Rotation(100_000_000, 2),
        )
    )


@pytest.mark.parametrize(
    ("flags", "are_wanted"),
    [
        *((flags, True) for flags in ("-r 3", "--tee 0:1", "--duplicate-stderr-filters Error", "-r 0:0,1:2")),
        *((flags, False) for flags in ("", "-r 0", "--tee 0:0,1:0", "--local-ranks-filter 1")),
    ],
)
def test_where_files_are_wanted_and_no_place_is_named_there_is_one_and_it_is_said(
    flags: str, are_wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = join("--coord", "h", "--job-id", "j", *flags.split())
    place = config.output.log_dir
    assert (place is not None) == are_wanted
    assert place is None or (place.parent == tmp_path and str(place) in config.remarks[0])
    assert list(tmp_path.iterdir()) == [], "it is made with the first file"


def test_dev_null_takes_no_files_and_so_nothing_is_kept_from_the_terminal() -> None:
    config = join("--coord", "h", "--job-id", "j", "--log-dir", "/dev/null", "-r", "3", "-t", "1")
    assert config.output == OutputSettings()
    assert "all output goes to the terminal" in config.remarks[0]
    assert join("--coord", "h", "--job-id", "j", "--log-dir", "/dev/null").remarks == ()


def test_a_scheduler_wants_to_find_the_root_cause_in_a_file() -> None:
    assert join("--coord", "h", "--job-id", "j", TORCHELASTIC_ERROR_FILE="/reply.json").error_file == Path(
        "/reply.json"
    )
    assert join("--coord", "h", "--job-id", "j", TORCHELASTIC_ERROR_FILE="").error_file is None


SRUN = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "4", "SLURM_NODEID": "2"}


def test_what_is_not_given_comes_from_the_scheduler_and_a_remark_says_so() -> None:
    config = join("--coord", "h", **SRUN)
    assert (config.job, config.spec, config.group_rank) == ("4711.0", given_spec(4, 4, 0), 2)
    assert config.remarks == (
        "job id 4711.0 from SLURM_JOB_ID, SLURM_STEP_ID",
        "number of nodes 4 from SLURM_STEP_NUM_NODES",
        "node rank 2 from SLURM_NODEID",
    )


def test_flags_and_variables_of_ours_win_over_the_scheduler() -> None:
    config = join("--coord", "h", "--nnodes", "2:4", "--node-rank", "0", NODECLIENT_JOB_ID="mnist", **SRUN)
    assert (config.job, config.spec, config.group_rank) == ("mnist", given_spec(2, 4, 0), 0)
    assert config.remarks == ()


def test_a_rank_of_the_scheduler_that_no_node_of_the_job_can_have_is_no_wish() -> None:
    config = join("--coord", "h", "--nnodes", "1:2", "--job-id", "j", **SRUN)
    assert (config.group_rank, config.remarks) == (None, ())


def test_a_job_of_one_host_alone_asks_no_scheduler() -> None:
    config = join("--standalone", **SRUN, SLURM_STEP_NUM_TASKS="16")
    assert (config.job, config.spec, config.remarks) == ("default", given_spec(1, 1, 0), ())


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TORCHELASTIC_ENABLE_FILE_TIMER", "1"),
        ("TORCHELASTIC_HEALTH_CHECK_PORT", "8000"),
        ("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "60"),
    ],
)
def test_a_variable_that_asks_for_what_is_not_done_is_remarked_on(variable: str, value: str) -> None:
    [remark] = join("--coord", "h", "--job-id", "j", **{variable: value}).remarks
    assert remark.startswith(f"{variable} has no effect: ")
    assert join("--coord", "h", "--job-id", "j", **{variable: "0"}).remarks == ()


def test_a_health_check_is_a_command_line_without_a_shell(tmp_path: Path) -> None:
    usual = ("--coord", "h", "--job-id", "j", "--no-builtin-check")
    assert not join(*usual).agent_settings.checks_health
    assert join(*usual[:-1]).agent_settings.checks_health
    words = ("/opt/check", "all of them", "$HOME;")
    config = join(*usual, "--health-check", "/opt/check 'all of them' $HOME;")
    assert (config.health_check, config.agent_settings.checks_health) == (words, True)
    assert join(*usual, NODECLIENT_HEALTH_CHECK="/opt/check 'all of them' $HOME;").health_check == words
    file = tmp_path / "settings.toml"
    file.write_text('health-check = ["/opt/check", "all of them", "$HOME;"]')
    assert join(*usual, "--config", str(file)).health_check == words


@pytest.mark.parametrize(("shown", "remarked"), [("7", True), ("1,7", False)])
def test_a_filter_that_shows_nobody_is_remarked_on(shown: str, remarked: bool) -> None:
    flags = ("--nproc-per-node", "2", "--local-ranks-filter", shown)
    remarks = join("--coord", "h", "--job-id", "j", *flags).remarks
    assert any("keeps all 2 workers" in remark for remark in remarks) == remarked


def test_an_interface_gives_the_node_its_address() -> None:
    usual = ("--coord", "h", "--job-id", "j")
    config = join(*usual, "--interface", "lo")
    assert (config.interface, config.advertise_address) == ("lo", "127.0.0.1")
    [remark] = config.remarks
    assert "--interface lo: 127.0.0.1 is of loopback" in remark
    config = join(*usual, "--interface", "lo", "--advertise-addr", "10.0.0.1", NCCL_SOCKET_IFNAME="ib")
    assert (config.interface, config.advertise_address, config.remarks) == ("lo", "10.0.0.1", ())
    [_, remark] = sorted(join(*usual, "--interface", "lo", NCCL_SOCKET_IFNAME="ib").remarks)
    assert remark == "NCCL_SOCKET_IFNAME=ib is set, so --interface lo does not change it"
    [remark] = join(*usual, "--advertise-addr", "127.0.1.1").remarks
    assert "--advertise-addr 127.0.1.1 is of loopback" in remark


def test_an_interface_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(SettingsError, match=r"--interface wg7: this host has no such .* there are: .*\blo\b"):
        join("--coord", "h", "--interface", "wg7")


@pytest.mark.parametrize(
    ("flag", "given", "field", "value"),
    [
        ("hang-timeout", None, "hang_timeout_s", None),
        ("hang-timeout", "600", "hang_timeout_s", 600.0),
        ("hang-timeout", "off", "hang_timeout_s", 0.0),
        ("drain-laggards", None, "drain_laggards", 0.0),
        ("drain-laggards", "1.2", "drain_laggards", 1.2),
        ("drain-laggards", "1000", "drain_laggards", 1000.0),
    ],
)
def test_what_is_judged_a_hang_or_a_laggard_is_a_setting_of_the_job(
    flag: str, given: str | None, field: str, value: float | None
) -> None:
    flags = () if given is None else (f"--{flag}", given)
    environ = {} if given is None else {f"NODECLIENT_{flag.upper().replace('-', '_')}": given}
    for config in (join("--coord", "host", *flags), join("--coord", "host", **environ)):
        assert getattr(config.spec, field) == value


READ: list[tuple[Callable[[str], object], dict[str, object]]] = [
    (node_range, {"4": (4, 4), "2:8": (2, 8), "2:": (2, RANKS_MAX)}),
    (size, {"10k": 10_000, "100MB": 100_000_000, "2g": 2_000_000_000, "64KiB": 65_536, "1GiB": 1 << 30}),
    (size, {"20000": 20_000, "20000 B": 20_000}),
    (local_ranks, {"0, 1,12": frozenset({0, 1, 12}), "": None}),
    (filter_words, {"apple,orange": ("apple", "orange"), "a,,b": ("a,b",), "": (), "a,": ("a",), "x y": ("x y",)}),
    (pairs, {"a=1, b = x=y ": {"a": "1", "b": "x=y"}, "": {}}),
    (endpoints, {"h": (Endpoint("h", 29400),), "h:1": (Endpoint("h", 1),)}),
    (endpoints, {"10.0.0.1:65535": (Endpoint("10.0.0.1", 65535),), "fd00::5": (Endpoint("fd00::5", 29400),)}),
    (endpoints, {"[fd00::5]:7": (Endpoint("fd00::5", 7),), "[fd00::5]": (Endpoint("fd00::5", 29400),)}),
    (endpoints, {"a, b:2": (Endpoint("a", 29400), Endpoint("b", 2))}),
    (endpoints, {"https://h:7/, http://g": (Endpoint("h", 7), Endpoint("g", 29400))}),
]


@pytest.mark.parametrize(
    ("read", "text", "value"), [(read, text, value) for read, values in READ for text, value in values.items()]
)
def test_the_value_of_a_flag_is_read(read: Callable[[str], object], text: str, value: object) -> None:
    assert read(text) == value


NINES = "9" * 5_000
"""More digits than `int` takes."""

REFUSED: list[tuple[Callable[[str], object], str, list[str]]] = [
    (memory_share, "expected a s", ["all", "0%", "91%", "2.5%", "-1", "999kB", "%", f"{NINES}%"]),
    (endpoints, "HOST", ["", ":1", "h:0", "h:65536", "h:x", "h,,g", "[fd00::5", "[]:1", "ftp://h"]),
    (node_range, "MIN", ["", "0", "3:2", "a", "1:b", ":3", "1:2:3", "-1"]),
    (streams, "expected 0", ["", "4", "-1", "0:4", "a:1", "0:1,", "1:1;2:2", "0:1 1:2", "3,1:1", f"{NINES}:1"]),
    (slots, "1 to 4096", ["", "0", "4097", "+1", NINES]),
    (size, "100MB", ["", "0", "9999", "-5M", "1.5M", "10X", "M", "100MBB"]),
    (local_ranks, "local ranks", ["a", "0,", "-1", "0-3", NINES]),
    (signals, "no signal|cannot be handled", ["", "TERM", "SIGFOO", "SIGTERM;SIGINT", "SIGKILL", "SIGTERM,SIGSTOP"]),
    (signals, "cannot be handled", ["SIGCHLD"]),
    (pairs, "KEY=VALUE", ["a", "a=", "=1", "a=1,,b=2"]),
    (hang_timeout, "at least 1 and at most 86400, .*; or off", ["0", "-1", "0.5", "on", "nan", "86401"]),
    (laggard_factor, r"from 1\.05 to 1000, such as 1\.2", ["0", "1", "1.04", "-2", "1001", "much", "nan"]),
]


@pytest.mark.parametrize(
    ("read", "words", "text"), [(read, words, text) for read, words, texts in REFUSED for text in texts]
)
def test_what_is_no_value_of_a_flag_is_refused(read: Callable[[str], object], words: str, text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=words):
        read(text)
