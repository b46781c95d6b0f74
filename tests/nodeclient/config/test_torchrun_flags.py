"""Everything that torchrun's own parser has, `nodeclient run` has as well, or TORCHRUN.md says why not."""

import argparse
import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed.argparse_util as of_torch
from torch.distributed import launch as torch_launch
from torch.distributed import run as torch_run

from coordinatord.runtime.settings import SettingsError, SettingsParser
from nodeclient.config.join import TORCHRUN_FLAGS, add_join_flags
from nodeclient.config.join_config import JoinConfig
from nodeclient.config.parse import parse
from nodeclient.config.torchrun_rendezvous import CONF_KEYS
from tests.support.source import ROOT

pytestmark = pytest.mark.slow

DOCUMENT = (ROOT / "TORCHRUN.md").read_text()

SCRIPT = "/bin/sh"
"""A script to Python, for it is there, and a program to `--no-python`."""

SINCE = re.compile(r"\(torch (\d+)\.(\d+)\)")
OLDEST = (2, 4)
"""The torch that has all flags of which the table says nothing else."""

POSITIONALS = {"training_script", "training_script_args"}

REFUSED = {"logs_specs"}
"""TORCHRUN.md has the reason."""

BASE = {"nnodes": "1:2", "rdzv_endpoint": "10.0.0.1:29400", "rdzv_id": "mnist", "log_dir": "/logs"}
"""Settings with which most flags have an effect of their own."""

UNLIKE_BASE: dict[str, dict[str, str | None]] = {
    "master_addr": {"rdzv_endpoint": None, "rdzv_backend": "static"},
    "master_port": {"rdzv_endpoint": None, "rdzv_backend": "static"},
    "rdzv_backend": {"rdzv_endpoint": None, "nnodes": None},
    "rdzv_endpoint": {"nnodes": None},
    "nnodes": {"nnodes": None, "rdzv_id": None},
}
"""What is left out of them or put in, so that a flag has one."""

VALUES = {
    "nnodes": "2:4",
    "nproc_per_node": "3",
    "rdzv_backend": "c10d",
    "rdzv_endpoint": "10.0.0.2:5",
    "rdzv_id": "cifar",
    "rdzv_conf": "join_timeout=7",
    "max_restarts": "5",
    "monitor_interval": "2.5",
    "start_method": "fork",
    "event_log_handler": "console",
    "role": "trainer",
    "log_dir": "/elsewhere",
    "redirects": "3",
    "tee": "0:1,1:3",
    "log_line_prefix_template": "${hostname}:${rank}: ",
    "print_completion": "bash",
    "local_ranks_filter": "0,1",
    "duplicate_stdout_filters": "apple,,pie,orange",
    "duplicate_stderr_filters": "Error",
    "node_rank": "1",
    "master_addr": "10.0.0.3",
    "master_port": "1234",
    "local_addr": "127.0.0.9",
    "numa_binding": "socket",
    "signals_to_handle": "SIGTERM,SIGUSR1",
    "shutdown_timeout": "77",
}
"""One for each flag that takes any; other ones than the default."""

WITHOUT_EFFECT = {"monitor_interval", "start_method", "event_log_handler"}

ENDS = {"print_completion"}
"""These end the program, as `--help` does; what they print is in tests/cli."""

OTHER_DEFAULT = {"rdzv_backend", "signals_to_handle"}
"""TORCHRUN.md has the reason."""


def actions(*, launch: bool = False) -> list[argparse.Action]:
    """Return the arguments of torch's parser, except --help and what is no flag."""
    parsers: list[argparse.ArgumentParser] = []

    class Parser(argparse.ArgumentParser):
        def parse_args(self, *_: object) -> None:  # type: ignore[override]  # torch keeps the parser of launch to itself
            parsers.append(self)

    if launch:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_run, "ArgumentParser", Parser)
            torch_launch.parse_args([])  # type: ignore[no-untyped-call]
    else:
        parsers.append(torch_run.get_args_parser())
    return [action for action in parsers[0]._actions if action.dest not in POSITIONALS | {"help"}]


FLAGS = [("run", action) for action in actions()]
LAUNCH_FLAGS = [("launch", action) for action in actions(launch=True)]

spellings = pytest.mark.parametrize(
    ("command", "action", "spelling"),
    [(command, action, spelling) for command, action in FLAGS + LAUNCH_FLAGS for spelling in action.option_strings],
    ids=lambda value: value.dest if isinstance(value, argparse.Action) else value,
)


WITHOUT_DEFAULT = {action.dest for _, action in FLAGS if action.nargs == 0 or action.default in (None, [])}


def each_flag_but(*left_out: str) -> pytest.MarkDecorator:
    chosen = [action for _, action in FLAGS if action.dest not in left_out]
    return pytest.mark.parametrize("action", chosen, ids=lambda action: action.dest)


def read(command: str, *arguments: str, **environ: str) -> JoinConfig:
    config = parse([command, "--node-id", "n", *arguments, SCRIPT], {"PATH": os.defpath, **environ})
    assert isinstance(config, JoinConfig)
    return config


def base(dest: str) -> list[str]:
    """Return flags beside which the one of this name has an effect."""
    chosen = {**BASE, **UNLIKE_BASE.get(dest, {})}
    return [f"--{name}={value}" for name, value in chosen.items() if value is not None and name != dest]


def given(action: argparse.Action, spelling: str) -> list[str]:
    return [spelling] if action.nargs == 0 else [spelling, VALUES[action.dest]]


@spellings
def test_every_spelling_of_every_flag_of_torchrun_is_understood(
    command: str, action: argparse.Action, spelling: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if action.dest in REFUSED:
        with pytest.raises(SettingsError, match=f"--{action.dest.replace('_', '-')} x: "):
            read(command, spelling, "x")
        return
    if action.dest in ENDS:
        with pytest.raises(SystemExit) as ended:
            read(command, *given(action, spelling))
        assert (ended.value.code or 0, "nodeclient" in capsys.readouterr().out) == (0, True)
        return
    others = ["--use-env"] if action.dest == "no_python" and command == "launch" else []
    read(command, *base(action.dest), *others, *given(action, spelling))


@each_flag_but(*REFUSED, *ENDS)
def test_a_flag_has_an_effect_unless_it_is_listed_with_none(action: argparse.Action) -> None:
    flags = base(action.dest)
    before, after = read("run", *flags), read("run", *flags, *given(action, action.option_strings[0]))
    assert (after == before) is (action.dest in WITHOUT_EFFECT), "tests without torch say which effect"


@each_flag_but(*REFUSED)
def test_a_variable_that_torchrun_reads_is_read_and_no_other(action: argparse.Action) -> None:
    variable = f"PET_{action.dest.upper()}"
    flags = base(action.dest)
    by_variable = read("run", *flags, **{variable: "1" if action.nargs == 0 else VALUES[action.dest]})
    if isinstance(action, of_torch.env | of_torch.check_env):
        assert by_variable == read("run", *flags, *given(action, action.option_strings[0]))
    else:
        assert by_variable == read("run", *flags)


@each_flag_but(*OTHER_DEFAULT, *WITHOUT_DEFAULT)
def test_a_flag_has_torchruns_default(action: argparse.Action) -> None:
    flags = base(action.dest)
    said = read("run", *flags, action.option_strings[0], str(action.default))
    silent = read("run", *flags)
    if action.dest == "node_rank":  # torchrun uses its default with `static` alone
        static = ["--rdzv-backend", "static"]
        assert read("run", *flags, *static).group_rank == read("run", *flags, *static, "--node-rank", "0").group_rank
        assert silent.group_rank is None
    else:
        assert said == silent


@pytest.mark.parametrize("variable", ["PET_STANDALONE", "PET_MODULE", "PET_VIRTUAL_LOCAL_RANK"])
def test_a_switch_may_be_off_in_the_environment(variable: str) -> None:
    assert read("run", *base(""), **{variable: "0"}) == read("run", *base(""))


@pytest.mark.parametrize(
    "line",
    [
        "w.py",
        "w.py --a 1",
        "-- w.py a",
        "-- w.py -- a",
        "--nnodes 1 w.py -- b",
        "--nproc-per-node 2 -- w.py -- --nnodes 3",
        "w.py a -- b --",
        "-m w.py -m x -r 3",
        "-mr3 w.py",
        "-r 3 -t 0:1 w.py -t",
        "w.py -h --help -1",
        "--redirects=3 w.py a=b --c=d",
    ],
)
def test_where_the_script_begins_is_seen_as_torchrun_sees_it(line: str) -> None:
    words = [SCRIPT if word == "w.py" else word for word in line.split()]
    theirs = torch_run.get_args_parser().parse_args(words)
    config = parse(["run", "--log-dir=/logs", *words], {"PATH": os.defpath})
    assert isinstance(config, JoinConfig)
    assert config.command[1:] == (
        "-u",
        *(["-m"] if theirs.module else []),
        theirs.training_script,
        *theirs.training_script_args,
    )


# The documents


def rows() -> dict[str, str]:
    """Return the rows of the tables of TORCHRUN.md by what stands in code in their first cells."""
    found = {}
    for line in DOCUMENT.splitlines():
        if line.startswith("| "):
            first = line.split(" | ")[0]
            found.update(dict.fromkeys(re.findall(r"`([^`]+)`", first), line))
    return found


def test_the_table_says_since_which_torch_there_is_a_flag() -> None:
    installed = tuple(map(int, torch.__version__.split(".")[:2]))
    flags = {flag for _, action in FLAGS + LAUNCH_FLAGS for flag in action.option_strings}
    of_table = DOCUMENT.partition("\n## Flags\n")[2].partition("\n## ")[0]
    for line in (line for line in of_table.splitlines() if line.startswith("| `")):
        first = line.split(" | ")[0]
        since = SINCE.search(first)
        there = installed >= (tuple(map(int, since.groups())) if since else OLDEST)
        for flag in re.findall(r"`(--?[a-z-]+)", first):
            assert (flag in flags) == there, f"{flag} and torch {torch.__version__}"


@pytest.mark.parametrize("action", [action for _, action in LAUNCH_FLAGS], ids=lambda action: action.dest)
def test_the_table_has_every_flag(action: argparse.Action) -> None:
    names = {name.split()[0] for name in rows()}
    assert {flag for flag in action.option_strings if "_" not in flag} <= names
    if action.dest in REFUSED:
        assert "refused: " in rows()[f"--{action.dest.replace('_', '-')}"]
    if action.dest in WITHOUT_EFFECT:
        assert "no effect" in rows()[f"--{action.dest.replace('_', '-')}"]


def test_the_table_has_every_key_of_the_rendezvous_configuration() -> None:
    assert set(CONF_KEYS) <= rows().keys()


KEY = re.compile(r"""(?:config|params)\.get(?:_as_\w+)?\(\s*["'](\w+)["']|_get_timeout\(params, ["'](\w+)["']\)""")
"""Where a backend of torch reads one; the second group goes without its `_timeout`."""


def test_the_keys_are_those_that_torchs_backends_read() -> None:
    files = Path(torch_run.__file__).parent.glob("elastic/rendezvous/*.py")
    pairs = [pair for file in files for pair in KEY.findall(file.read_text())]
    found = {key or f"{timeout}_timeout" for key, timeout in pairs}
    assert {"last_call_timeout", "store_type", "read_timeout", "cert", "rank"} <= found
    assert found <= set(CONF_KEYS)


VARIABLE = re.compile(
    r"""(?:environ(?:\.get)?\s*[(\[]|getenv\(|get_env_variable_or_raise\()\s*f?["']([A-Z][A-Z_]+)["']"""
    r"""|^_?[A-Z_]+\s*=\s*["'](TORCH[A-Z_]+)["']""",
    re.MULTILINE,
)
"""Where torch's launcher reads a variable, or names one in a constant."""


def test_the_tables_have_every_variable_that_torchs_launcher_reads() -> None:
    root = Path(torch_run.__file__).parent
    files = [root / "run.py", root / "launch.py", *root.glob("launcher/**/*.py"), *root.glob("elastic/**/*.py")]
    found = {name for file in files for pair in VARIABLE.findall(file.read_text()) for name in pair if name}
    assert {"PYTHON_EXEC", "LOGLEVEL", "TORCHELASTIC_ENABLE_FILE_TIMER"} <= found
    assert [name for name in sorted(found) if f"`{name}`" not in DOCUMENT] == []


def test_what_join_does_not_take_of_torchrun_it_explains() -> None:
    parser = SettingsParser(prog="nodeclient join", env_prefix="NODECLIENT", environ={})
    add_join_flags(parser)
    of_join = {flag for action in parser._actions for flag in action.option_strings}
    for _, action in LAUNCH_FLAGS:
        for flag in action.option_strings:
            if "_" not in flag:
                assert (flag in of_join) != (flag in TORCHRUN_FLAGS), flag
