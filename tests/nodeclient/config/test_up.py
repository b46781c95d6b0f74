"""The settings of `nodeclient up`: its hosts, as people and other launchers name them, and what each node gets."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.runtime.settings import SettingsError
from nodeclient.config.join_config import JoinConfig
from nodeclient.config.parse import parse
from nodeclient.config.up import HOSTS_MAX, Hosts, UpConfig, read_hostfile, read_hosts
from nodeclient.output.output_settings import Choice, Streams
from nodeclient.remote.bring_up import arguments

COMMAND = (sys.executable, __file__, "--hosts", "9")


def up(*words: str, **environ: str) -> UpConfig:
    config = parse(["up", *words, "--", *COMMAND], environ)
    assert isinstance(config, UpConfig)
    return config


def node(config: UpConfig, rank: int) -> JoinConfig:
    """Return the settings that a host, where Slurm has set a variable, makes of its command line."""
    found = parse(arguments(config, rank, "10.0.0.1:4000"), {"PATH": "", "SLURM_JOB_ID": "7"})
    assert isinstance(found, JoinConfig)
    return found


def test_the_defaults_need_no_thought() -> None:
    config = up("--hosts", "gpu1,gpu2:8")
    assert config.hosts == {"gpu1": None, "gpu2": 8}
    assert (config.coordinators, config.coordinator_host) == ((), "localhost")
    assert (config.remote_python, config.workdir) == (sys.executable, Path.cwd())
    assert (config.nodes, config.command, config.remarks) == ((2, 2), COMMAND, ())
    nodes = [node(config, rank) for rank in range(2)]
    for rank, joined in enumerate(nodes):
        assert joined.coordinators == (Endpoint("10.0.0.1", 4000),)
        assert (joined.job, joined.group_rank, joined.command) == ("default", rank, COMMAND)
        assert (joined.spec.nodes_min, joined.spec.nodes_max) == (2, 2)
        assert joined.output.prefix == "[rank ${rank}] "
    assert nodes[1].workers == 8


def test_flags_of_join_reach_the_nodes_from_wherever_they_come(tmp_path: Path) -> None:
    file = tmp_path / "up.toml"
    file.write_text('hosts = ["gpu1", "gpu2"]\nlocal-ranks-filter = ["0", "1"]\nvirtual-local-rank = true\n')
    config = up(
        *("--config", str(file), "--nnodes", "1:", "--max-restarts=3/6h", "-r", "0:1"), NODECLIENT_JOB_ID="mnist"
    )
    joined = node(config, 1)
    assert (joined.job, joined.spec.nodes_min, joined.spec.max_restarts) == ("mnist", 1, 3)
    assert joined.output.redirects == Choice(by_local_rank={0: Streams.STDOUT})
    assert joined.output.terminal_ranks == frozenset({0, 1})
    assert joined.virtual_local_rank


def test_a_host_beyond_the_largest_number_of_nodes_is_a_spare_without_a_rank_of_its_own() -> None:
    config = up("--hosts", "gpu1,gpu2,gpu3", "--nnodes", "2")
    assert [node(config, rank).group_rank for rank in range(3)] == [0, 1, None]


def test_a_coordinator_that_is_there_gets_its_own_flags(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    authorities = f"--tls-ca={tmp_path / 'ca.pem'}"
    config = up("--hosts", "gpu1", "--coord", "head1,head2", authorities, "--token-file", "secret")
    assert config.coordinators == (Endpoint("head1", 29400), Endpoint("head2", 29400))
    assert authorities in config.arguments
    assert "secret" not in "".join(config.arguments), "the token comes another way"
    [remark] = config.remarks
    assert "no --job-id" in remark


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "name the hosts"),
        (("--hosts", "gpu1;reboot"), "expected HOST"),
        (("--hosts", "gpu1", "--hostfile", "/etc/hostname"), "not both"),
        (("--hostfile", "/nonexistent"), "/nonexistent cannot be read"),
        (("--hosts", "gpu1", "--standalone"), "not understood: --standalone; --standalone is for one node"),
        (("--hosts", "gpu1", "--node-id", "a"), "not understood: --node-id; --node-id is for one node"),
        (("--hosts", "gpu1", "--insecure"), "--insecure is for a coordinator that is there"),
        (("--hosts", "gpu1", "--token-file", "x"), "--token-file=x is for a coordinator that is there"),
        (("--hosts", "gpu1", "--coord", "head1", "--coordinator-host", "gpu1"), "leave --coordinator-host out"),
        (("--hosts", "gpu1", "--remote-python", "/it's/python"), "a login shell"),
        (("--hosts", "gpu1", "--rdzv-id", "x"), "is here --job-id"),
    ],
)
def test_a_wrong_command_line_is_explained(words: tuple[str, ...], error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        up(*words)


def test_a_word_that_cannot_be_sent_to_other_hosts_is_named() -> None:
    with pytest.raises(SettingsError, match=r"tr\\udce9.py' is not in UTF-8"):
        parse(["up", "--hosts", "gpu1", "--", "python", "tr\udce9.py"], {})


def test_without_a_command_the_error_has_an_example() -> None:
    with pytest.raises(SettingsError, match=r"-- python train\.py"):
        parse(["up", "--hosts", "gpu1"], {})


DEEPSPEED = """
# the first rack
gpu1 slots=8
gpu2 slots=4   # half of it
"""

OPEN_MPI = """
gpu1 slots=8 max_slots=8
gpu2 slots = 4 max-slots = 16
"""

MPICH = """
gpu1:8

gpu2:4
"""


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:

    def write(text: str) -> str:
        (path := tmp_path / "hosts").write_text(text, newline="")
        return str(path)

    return write


@pytest.mark.parametrize("text", [DEEPSPEED, OPEN_MPI, MPICH], ids=["DeepSpeed", "Open MPI", "MPICH"])
@pytest.mark.parametrize("written", [str, lambda text: "\ufeff" + text.replace("\n", "\r\n")], ids=["here", "Windows"])
def test_the_host_files_of_other_launchers_are_read(
    text: str, written: Callable[[str], str], file: Callable[[str], str]
) -> None:
    assert up("--hostfile", file(written(text))).hosts == {"gpu1": 8, "gpu2": 4}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu1,gpu2:8", {"gpu1": None, "gpu2": 8}),
        (" gpu1 , gpu2 ,", {"gpu1": None, "gpu2": None}),
        ("ana@gpu1.example.org:2", {"ana@gpu1.example.org": 2}),
        ("10.0.0.1:2,fd00::5,[fd00::6]:2", {"10.0.0.1": 2, "fd00::5": None, "fd00::6": 2}),
        ("", {}),
    ],
)
def test_hosts_are_named_as_for_ssh(text: str, hosts: Hosts) -> None:
    assert read_hosts(text) == hosts


@pytest.mark.parametrize(
    ("text", "slots"), [("gpu1\ngpu1", 2), ("gpu1:8\ngpu1", 9), ("gpu1 slots=2\ngpu2\ngpu1 slots=3", 5)]
)
def test_a_host_that_is_named_twice_has_the_slots_of_both_lines(
    text: str, slots: int, file: Callable[[str], str]
) -> None:
    assert read_hostfile(file(text))["gpu1"] == slots


@pytest.mark.parametrize(
    "text",
    [
        "-oProxyCommand=evil",
        "gpu1;reboot",
        "gpu1 gpu2",
        "$(reboot)",
        "gpu1:",
        "gpu1:0",
        "gpu1:4097",
        "gpu1:4096,gpu1",
        "ana@-x",
        "a:b:c:z",
    ],
)
def test_a_text_that_is_no_host_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="expected"):
        read_hosts(text)


@pytest.mark.parametrize("line", ["gpu1 slots=x", "gpu1 cpu=2", "gpu1 slots 8", "gpu1 8", "gpu1 slots="])
def test_a_wrong_line_of_a_file_is_named(line: str, file: Callable[[str], str]) -> None:
    with pytest.raises(ArgumentTypeError, match=r"line 3: "):
        read_hostfile(file(f"# hosts\ngpu0\n{line}\n"))


def test_there_is_a_limit_of_hosts() -> None:
    with pytest.raises(ArgumentTypeError, match="scheduler"):
        read_hosts(",".join(f"gpu{number}" for number in range(HOSTS_MAX + 1)))
