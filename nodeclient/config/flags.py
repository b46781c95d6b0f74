"""The flags that all three command lines share; each sets their defaults, and adds flags of its own.

Flags that torchrun has as well have torchrun's names here, and take their default from the variable with the parser's
own prefix. Flags that only we have take it from `NODECLIENT_*` everywhere.
"""

from __future__ import annotations

from typing import Any

from coordinatord.protocol.scale_up import ScaleUp
from coordinatord.runtime.logs import FORMATS, LEVELS
from coordinatord.runtime.settings import NUMBER, WHOLE, WHOLE_OR_TEXT, SettingsParser, joined, seconds
from nodeclient.config import flag_values
from nodeclient.config.access_flags import add_access, own_variable
from nodeclient.config.join_config import SIGNALS
from nodeclient.host import numa

ROTATIONS_KEPT = 5
"""How many old logs are kept, as in logrotate's examples."""


def add_size(parser: SettingsParser, *, nodes: str, workers: str, workers_default: str | None = None) -> None:
    """Add the flags for the number of nodes, workers and restarts; `nodes` and `workers` describe the defaults."""
    add = parser.add_setting
    add(
        "--nnodes",
        type=flag_values.node_range,
        toml=WHOLE_OR_TEXT,
        metavar="N|MIN:MAX",
        help=f"nodes of a round; 'MIN:' for no maximum (default: {nodes})",
    )
    add(
        "--nproc-per-node",
        default=workers_default,
        toml=WHOLE_OR_TEXT,
        metavar="N|auto|gpu|cpu",
        help=f"workers on this host (default: {workers})",
    )
    add(
        "--max-restarts",
        type=flag_values.count,
        toml=WHOLE,
        default=0,
        metavar="N",
        help="worker failures the whole job survives (default: 0)",
    )


def add_nodes(parser: SettingsParser) -> None:
    """Add the other flags for nodes and rounds of a job."""
    parser.add_heading("nodes and workers of the job")
    add = parser.add_setting
    add_own(
        parser,
        "--scale-up",
        choices=[str(choice) for choice in ScaleUp],
        default=str(ScaleUp.NOW),
        metavar="WHEN",
        help="now, at-checkpoint, never: when a round ends to take in nodes that have arrived (default: now)",
    )
    add_own(
        parser,
        "--hang-timeout",
        type=flag_values.hang_timeout,
        toml=WHOLE_OR_TEXT,
        metavar="S|off",
        help="seconds without a step after which a round that hangs is restarted (default: by the run's own pace)",
    )
    add_own(
        parser,
        "--drain-laggards",
        type=flag_values.laggard_factor,
        toml=NUMBER,
        metavar="FACTOR",
        help="drain a node whose worker makes each step FACTOR times as long, such as 1.2 (default: never)",
    )
    add("--role", type=flag_values.name, default="default", help="role of this node's workers (default: default)")
    add("--node-rank", type=flag_values.count, toml=WHOLE, metavar="N", help="the group rank that this node asks for")


def _add_persist(parser: SettingsParser) -> None:
    """Add the flags for state on a disk."""
    add_own(
        parser,
        "--persist",
        type=flag_values.folder,
        metavar="DIR",
        help="write what workers give to ctx.keep to this directory, which all nodes share, and resume from there",
    )
    add_own(
        parser,
        "--persist-every",
        type=seconds,
        toml=NUMBER,
        metavar="S",
        help="seconds between two steps on the disk (default: 600)",
    )
    add_own(
        parser,
        "--persist-keep",
        type=flag_values.steps_kept,
        toml=WHOLE,
        metavar="N",
        help="how many steps stay on the disk (default: 2)",
    )


def add_workers(parser: SettingsParser, *, numa_variables: tuple[str, ...], signals_variables: tuple[str, ...]) -> None:
    """Add the flags for how workers are started, how they see their devices, and which signals end them.

    The environment variables of two flags are arguments, since torchrun's names of them follow no common rule.
    """
    parser.add_heading("how workers are started")
    parser.add_setting(
        "--numa-binding",
        variables=numa_variables,
        choices=numa.CHOICES,
        metavar="HOW",
        help=f"bind each worker to the CPUs near its GPU: {', '.join(numa.CHOICES)}",
    )
    parser.add_setting(
        "--virtual-local-rank",
        action="store_true",
        help="each worker sees its own GPU alone, and has LOCAL_RANK 0",
    )
    add_own(
        parser,
        "--preload",
        type=flag_values.modules,
        array=joined,
        default=(),
        metavar="MODULES",
        help="import these once, such as torch, and fork the workers of every round from there",
    )
    parser.add_setting(
        "--signals-to-handle",
        variables=signals_variables,
        type=flag_values.signals,
        array=joined,
        metavar="NAMES",
        help=f"signals that make the node leave (default: {','.join(signum.name for signum in SIGNALS)})",
    )
    parser.add_heading("state that workers keep")
    add_own(
        parser,
        "--keep-memory",
        type=flag_values.memory_share,
        toml=WHOLE_OR_TEXT,
        metavar="SIZE|PERCENT",
        help="memory of this host for state that workers keep, such as 64GB; 0 is none (default: 25%%)",
    )
    add_own(
        parser,
        "--keep-rate",
        type=flag_values.rate,
        toml=WHOLE_OR_TEXT,
        metavar="SIZE",
        help="bytes a second of other nodes' state that are copied to this node; 0 is none (default: 100MB)",
    )
    add_own(
        parser,
        "--keep-timeout",
        type=flag_values.seconds_or_none,
        toml=NUMBER,
        metavar="S",
        help="seconds that workers get to save what they keep when their round is over (default: 30)",
    )
    _add_persist(parser)


def add_output(parser: SettingsParser, *, template_variable: str) -> None:
    """Add the flags for where the workers' output goes; `template_variable` is torchrun's variable for the template."""
    parser.add_heading("output of workers")
    add = parser.add_setting
    add(
        "--log-dir",
        type=flag_values.folder,
        metavar="DIR",
        help="all output goes into DIR/JOB/RUN/round_N/RANK/{stdout,stderr}.log, and to the terminal as well",
    )
    streams: dict[str, Any] = {"type": flag_values.streams, "toml": WHOLE_OR_TEXT, "metavar": "STREAMS"}
    add(
        "--redirects",
        "-r",
        help="streams that go into files only: 1 (stdout), 2 (stderr), 3 (both), or by local rank, such as 0:1,12:3",
        **streams,
    )
    add("--tee", "-t", help="streams that go into files and to the terminal, even if redirected", **streams)
    add(
        "--log-line-prefix-template",
        variables=(template_variable, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
        metavar="TEXT",
        help="a prefix for each line on the terminal; ${hostname}, ${host} (without the domain), ${role_name},"
        " ${rank} and ${local_rank} are replaced",
    )
    add(
        "--local-ranks-filter",
        type=flag_values.local_ranks,
        toml=WHOLE_OR_TEXT,
        array=joined,
        metavar="RANKS",
        help="local ranks whose output reaches the terminal, such as 0,1",
    )
    for stream in ("stdout", "stderr"):
        add(
            f"--duplicate-{stream}-filters",
            type=flag_values.needles,
            array=flag_values.needles_joined,
            default=(),
            metavar="WORDS",
            help=f"lines of {stream} with any of these words also go into filtered_{stream}.log (',,' is a comma)",
        )
    add_own(
        parser,
        "--log-rotate",
        type=flag_values.size,
        toml=WHOLE_OR_TEXT,
        metavar="SIZE",
        help="begin a new file when one has this size, such as 100MB (default: never)",
    )
    add_own(
        parser,
        "--log-rotations-kept",
        type=flag_values.count,
        toml=WHOLE,
        default=ROTATIONS_KEPT,
        metavar="N",
        help=f"old files kept of each (default: {ROTATIONS_KEPT})",
    )
    add_own(
        parser,
        "--log-keep",
        type=flag_values.rounds_kept,
        toml=WHOLE_OR_TEXT,
        metavar="N|all",
        help="rounds of the job whose files stay on this host, the last failed one beside them (default: all)",
    )


def add_node(parser: SettingsParser) -> None:
    """Add the flags that only nodeclient has: names, places and times of a node, and the node's identity."""
    parser.add_heading("how the coordinator is spoken to")
    add_access(parser)
    parser.add_heading("this node")
    add_own(
        parser,
        "--node-id",
        type=flag_values.name,
        metavar="ID",
        help="name of this node that outlives a restart (default: host name, random suffix)",
    )
    add_own(
        parser,
        "--interface",
        type=flag_values.name,
        metavar="NAME",
        help="network interface that gloo and NCCL use, and at whose address other nodes reach this one",
    )
    add_own(
        parser,
        "--topology",
        type=flag_values.topology,
        default="",
        metavar="KEY",
        help="nodes with neighbouring keys (rack, switch) get neighbouring ranks, and copies lie under another key",
    )
    parser.add_heading("nodeclient's own log")
    add_own(
        parser,
        "--log-level",
        type=str.lower,
        choices=LEVELS,
        metavar="LEVEL",
        help="debug, info, warning, error (default: info)",
    )
    add_own(
        parser,
        "--log-format",
        type=str.lower,
        choices=FORMATS,
        default="text",
        help="for people, or for machines: one JSON object a line (default: text)",
    )
    parser.add_heading("times")
    add_own(
        parser,
        "--join-timeout",
        type=seconds,
        toml=NUMBER,
        metavar="S",
        help="seconds to wait for a round (default: 600)",
    )
    add_own(
        parser,
        "--stop-timeout",
        type=flag_values.seconds_or_none,
        toml=NUMBER,
        metavar="S",
        help="seconds that workers get to save in a planned stop (default: 30)",
    )
    add_own(
        parser,
        "--abort-timeout",
        type=flag_values.seconds_or_none,
        toml=NUMBER,
        metavar="S",
        help="seconds that workers get in any other stop, and to abort NCCL (defaults: 0.5, and 3 for NCCL)",
    )


def add_file(parser: SettingsParser) -> None:
    """Add the flags for a file with settings, and for showing the settings."""
    parser.add_heading("settings in a file")
    parser.add_config_file(own_variable("--config"))


def add_own(parser: SettingsParser, flag: str, **options: Any) -> None:
    """Add a flag that torchrun does not have."""
    parser.add_setting(flag, variables=(own_variable(flag),), **options)
