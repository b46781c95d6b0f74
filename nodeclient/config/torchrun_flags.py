"""`nodeclient run` and `nodeclient launch`: the command lines of torchrun and torch.distributed.launch.

Their flags are translated into those of `nodeclient join`, and nothing differs after that. TORCHRUN.md lists all
differences from torchrun with their reasons.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from coordinatord.runtime import PAGES
from coordinatord.runtime.logs import LEVELS
from coordinatord.runtime.settings import SettingsParser, Source, seconds, seconds_or_zero
from nodeclient.config import flags
from nodeclient.config.build import FrontEnd, check_script, join_config
from nodeclient.config.command_line import CommandLine
from nodeclient.config.join import MOVED
from nodeclient.config.join_config import JoinConfig
from nodeclient.config.torchrun_rendezvous import (
    IGNORING_TIMEOUT,
    Rendezvous,
    add_rendezvous_flags,
    choose_coordinators,
    read_conf,
    remarks_on_conf,
)
from nodeclient.host.schedulers import SchedulerError, scheduler_values
from nodeclient.workers.python_command import is_python
from nodeclient.workers.spawn import LOCAL_RANK_MACRO

NODES = (1, 1)
"""torchrun's default."""

UNNAMED = "no --rdzv-id: this is the job default, and all nodes without an id train together"

LOG_LEVELS = {level: level for level in LEVELS} | {"notset": "debug", "warn": "warning"}
LOG_LEVELS |= dict.fromkeys(("critical", "fatal"), "error")
"""Our levels, by the values of LOGLEVEL."""


def _add_run(parser: SettingsParser) -> None:
    """Add the flags of `nodeclient run`: all of torchrun's, and ours without a counterpart there."""
    _add_common(parser)
    parser.set_defaults(use_env=True)


def _add_launch(parser: SettingsParser) -> None:
    _add_common(parser)
    parser.add_heading("only of torch.distributed.launch")
    parser.add_setting("--use-env", "do not give the script --local-rank=N; it reads LOCAL_RANK", variables=())


def _add_common(parser: SettingsParser) -> None:
    parser.usage = f"{parser.prog} [flags] SCRIPT [ARGUMENTS ...]"
    parser.epilog = (
        f"{parser.epilog}\n"
        "torchrun's flags may be written with - or _, and can also be given as the environment variables in brackets,"
        " and in the file that --config names."
        f" What differs: {PAGES}/TORCHRUN.md"
    )
    parser.add_heading("what most jobs need")
    flags.add_size_flags(parser, nodes="1", workers="1", workers_default="1")
    flags.add_job_flags(parser)
    flags.add_identity_flags(parser)
    add_rendezvous_flags(parser)
    add = parser.add_setting
    parser.add_heading("what SCRIPT is")
    add("--module -m", "SCRIPT is a module, as in python -m")
    add("--no-python", "SCRIPT is a program, to be run as it is")
    add("--run-path", "run SCRIPT by runpy.run_path")
    flags.add_output_flags(parser, template_variable="PET_LOG_LINE_PREFIX_TEMPLATE")
    flags.add_worker_flags(
        parser, numa_variables=(), signals_variables=("PET_SIGNALS_TO_HANDLE", "TORCHELASTIC_SIGNALS_TO_HANDLE")
    )
    flags.add_node_flags(parser)
    add(
        "--shutdown-timeout S",
        "--stop-timeout and --abort-timeout in one",
        seconds_or_zero,
        variables=("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
    )
    # The values of flags without an effect are checked all the same.
    parser.add_heading("flags of torchrun that have no effect here")
    add("--monitor-interval S", "no effect: the end of a worker is seen at once", float)
    add("--start-method HOW", "no effect: workers are programs of their own", choices=("spawn", "fork", "forkserver"))
    add(
        "--event-log-handler NAME",
        "no effect: events are log lines, see --log-level",
        choices=("null", "console", "dynamic_rendezvous"),
    )
    add("--logs-specs NAME", "default; others are refused: such a class runs in torchrun", variables=())
    flags.add_file_flags(parser)
    parser.add_argument("script", metavar="SCRIPT", help="what each worker runs")
    arguments = parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="of the script")
    arguments.required = False  # as in Python 3.12: a script may have none


def _read_run(parser: SettingsParser, given: argparse.Namespace) -> JoinConfig:
    if given.logs_specs not in {None, "default"}:
        parser.error(
            f"--logs-specs {given.logs_specs}: such a class runs inside of torchrun; see --log-dir, --redirects, --tee"
        )
    if given.no_python and not given.use_env:
        parser.error("--no-python needs --use-env: without it, the program would be given --local-rank=N")
    remarks = list(remarks_on_conf(parser, given.rdzv_conf, given.rdzv_backend))
    rendezvous = choose_coordinators(parser, given, (given.nnodes or NODES)[1])
    remarks.extend(rendezvous.remarks)
    if not (rendezvous.coordinators or given.standalone or given.nnodes):
        remarks.extend(_remark_on_lone_node(parser.environ))
    _translate(parser, given, rendezvous)
    if parser.source("log_level") is Source.DEFAULT:
        given.log_level = _log_level(parser.environ, remarks) or given.log_level
    # A job without an id is worth a remark only where others may run jobs too.
    may_have_other_jobs = rendezvous.coordinators and not rendezvous.own_coordinator
    front_end = FrontEnd(
        nodes=NODES,
        command=worker_command(parser, given),
        group_rank=0 if rendezvous.static else None,  # torchrun uses its --node-rank, 0 by default, with `static` only
        own_coordinator=rendezvous.own_coordinator,
        remarks=tuple(remarks),
        remark_if_unnamed=UNNAMED if may_have_other_jobs else "",
    )
    return join_config(parser, given, front_end)


def _translate(parser: SettingsParser, given: argparse.Namespace, rendezvous: Rendezvous) -> None:
    """Translate torchrun's flags into those of `nodeclient join`. If both are given, ours win."""
    given.coord = rendezvous.coordinators
    given.standalone = not rendezvous.coordinators
    if given.job_id == "none":
        given.job_id = None  # torchrun's default, which some users give
    if parser.source("join_timeout_s") is Source.DEFAULT:
        keys = ("join_timeout",) if given.rdzv_backend in IGNORING_TIMEOUT else ("join_timeout", "timeout")
        found = (read_conf(parser, given.rdzv_conf, key, seconds) for key in keys)
        given.join_timeout_s = next(filter(None, found), given.join_timeout_s)
    if parser.source("stop_timeout_s") is Source.DEFAULT and given.shutdown_timeout_s is not None:
        given.stop_timeout_s = given.shutdown_timeout_s
    if given.abort_timeout_s is None:
        given.abort_timeout_s = given.shutdown_timeout_s


def _remark_on_lone_node(environ: Mapping[str, str]) -> list[str]:
    """Return a remark if the scheduler has several nodes for this job, and torchrun's default is one."""
    try:
        nodes = scheduler_values(environ).get("nnodes")
    except SchedulerError:
        return []  # several tasks on a node, and each is a job of its own
    if nodes is None or nodes.value == "1":
        return []
    return [f"{nodes.source} is {nodes.value}, but without --rdzv-endpoint and --nnodes each node trains by itself"]


def _log_level(environ: Mapping[str, str], remarks: list[str]) -> str | None:
    """Parse LOGLEVEL as torchrun does. An unknown value is no error, because other programs use this variable too."""
    name = environ.get("LOGLEVEL")
    level = LOG_LEVELS.get(name.lower()) if name else None
    if name and level is None:
        remarks.append(f"LOGLEVEL is {name!r}, which is not known here: see --log-level")
    return level


RUN_PATH = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
"""A program with the effect of torchrun's `run_script_path`, in a process of its own."""

SCRIPT_BYTES_MAX = 1024 * 1024
"""How much of a script is searched for the spelling of `--local-rank`: more than a person writes."""


def worker_command(parser: SettingsParser, given: argparse.Namespace) -> tuple[str, ...]:
    """Return the command line; the precedence of the flags is torchrun's."""
    python = parser.environ.get("PYTHON_EXEC") or sys.executable
    arguments = (*(() if given.use_env else (f"{_local_rank_flag(given)}={LOCAL_RANK_MACRO}",)), *given.arguments)
    if given.no_python and not given.run_path:
        if given.module:
            parser.error("give --module or --no-python, and not both: a module is run by Python")
        return (given.script, *arguments)
    if given.module and not given.run_path:
        return (python, "-u", "-m", given.script, *arguments)
    if is_python(given.script):
        parser.error(f"{given.script!r} is no script: leave it out, since Python runs the script, or give --no-python")
    check_script(parser, given.script)
    return (python, "-u", *(("-c", RUN_PATH) if given.run_path else ()), given.script, *arguments)


def _local_rank_flag(given: argparse.Namespace) -> str:
    """Return the flag that torch.distributed.launch puts before a script's own arguments, in the script's spelling.

    torch wrote it with `_` up to 1.13.
    """
    text = b""
    # A module is looked for in the working directory only: to find others, their packages would have to be imported.
    is_module = given.module and not given.run_path
    path = Path(f"{given.script.replace('.', '/')}.py" if is_module else given.script)
    if path.is_file():
        with path.open("rb") as file:
            text = file.read(SCRIPT_BYTES_MAX)
    has_old_only = b"--local_rank" in text and b"--local-rank" not in text
    return "--local_rank" if has_old_only else "--local-rank"


_RUN_HINTS = MOVED | {"--use-env": "it is a flag of nodeclient launch; run always sets LOCAL_RANK"}

COMMAND_LINES = {
    "run": CommandLine(_add_run, _read_run, _RUN_HINTS, env_prefix="PET"),
    "launch": CommandLine(_add_launch, _read_run, MOVED, env_prefix="PET"),
}
