"""The flags that `join`, `run` and `up` share; each command line sets their defaults, and adds its own flags.

torchrun's flags have torchrun's names here, and variables with the parser's own prefix. The variables of all other
flags begin with `NODECLIENT_` in each command line.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial

from coordinatord.protocol.messages import OnDivergence, ScaleUp
from coordinatord.runtime.logs import FORMATS, LEVELS
from coordinatord.runtime.settings import SettingsParser, folder, joined, seconds, seconds_or_zero
from nodeclient.config import flag_values
from nodeclient.config.access_flags import PREFIX, add_access_flags
from nodeclient.config.join_config import SIGNALS
from nodeclient.core.agent_settings import (
    ABORT_TIMEOUT_S,
    JOIN_TIMEOUT_S,
    KEEP_RATE,
    KEEP_TIMEOUT_S,
    NCCL_ABORT_TIMEOUT_S,
)
from nodeclient.host import numa
from nodeclient.keeping.disk.persist_settings import PERSIST_EVERY_S, PERSIST_KEEP
from nodeclient.output.output_settings import ROTATIONS_KEPT, Choice

STOP_TIMEOUT_S = 30.0
"""The same as the default of torchrun's `--shutdown-timeout`."""

KEEP_SHARE = 0.25
"""The default share of the memory for kept state. The state of a model on GPUs is a fraction of the host's memory, and
training on CPUs needs most of the memory itself."""


def add_size_flags(parser: SettingsParser, *, nodes: str, workers: str, workers_default: str | None = None) -> None:
    """Add the flags for the number of nodes, workers and restarts; `nodes` and `workers` describe the defaults."""
    add = parser.add_setting
    add("--nnodes N|MIN:MAX", "nodes of a round; 'MIN:' for no maximum", flag_values.node_range, by_default=nodes)
    add("--nproc-per-node N|auto|gpu|cpu", "workers of a node", default=workers_default, by_default=workers)
    add(
        "--max-restarts N[/TIME]",
        "worker failures that the whole job survives; 3/6h is 3 within any 6 hours",
        flag_values.restarts,
        default=(0, None),
        by_default="0",
    )


def add_job_flags(parser: SettingsParser) -> None:
    """Add the other flags for nodes and rounds of a job."""
    parser.add_heading("nodes and workers of the job")
    add, add_own = parser.add_setting, partial(parser.add_setting, prefix=PREFIX)
    add_own(
        "--scale-up WHEN",
        "now, at-checkpoint, never: when a round ends to take in nodes that have arrived",
        choices=[str(choice) for choice in ScaleUp],
        default=str(ScaleUp.NOW),
    )
    add_own(
        "--hang-timeout S|off",
        "seconds without a step after which a round that hangs is restarted",
        flag_values.hang_timeout,
        by_default="by the run's own pace",
    )
    add_own(
        "--max-futile-rounds N",
        "rounds in a row that may fail without a new step before the job ends; 0 for any number",
        flag_values.count,
        default=3,
    )
    add_own(
        "--drain-laggards FACTOR",
        "drain a node whose worker makes each step FACTOR times as long, such as 1.2",
        flag_values.laggard_factor,
        by_default="never",
    )
    add_own(
        "--on-divergence WHAT",
        "report, restart, quarantine: what is done when replicas diverge",
        choices=[str(choice) for choice in OnDivergence],
        default=str(OnDivergence.REPORT),
    )
    add("--role ROLE", "role of this node's workers", flag_values.name, default="default")


def add_identity_flags(parser: SettingsParser) -> None:
    """Add the flags that identify this node."""
    parser.add_heading("which node this is")
    parser.add_setting(
        "--node-id ID",
        "name of this node that outlives a restart",
        flag_values.name,
        prefix=PREFIX,
        by_default="host name, random suffix",
    )
    parser.add_setting("--node-rank N", "the group rank that this node asks for", flag_values.count)


def add_worker_flags(
    parser: SettingsParser,
    *,
    numa_variables: Sequence[str] | None = None,
    signals_variables: Sequence[str] | None = None,
) -> None:
    """Add the flags for starting workers, for their devices, and for the signals that end them.

    The environment variables of two flags are arguments, because torchrun's names for them follow no rule.
    """
    parser.add_heading("how workers are started")
    add, add_own = parser.add_setting, partial(parser.add_setting, prefix=PREFIX)
    add(
        "--numa-binding HOW",
        f"bind each worker to the CPUs near its GPU: {', '.join(numa.CHOICES)}",
        variables=numa_variables,
        choices=numa.CHOICES,
        dest="numa",
    )
    add("--virtual-local-rank", "each worker sees only its own GPU, and has LOCAL_RANK 0")
    add_own(
        "--preload MODULES",
        "import these once, such as torch, and fork the workers of every round from there",
        flag_values.modules,
        array=joined,
        default=(),
    )
    add(
        "--signals-to-handle NAMES",
        "signals that make the node leave",
        flag_values.signals,
        variables=signals_variables,
        array=joined,
        default=SIGNALS,
        by_default=",".join(signum.name for signum in SIGNALS),
        dest="signals",
    )
    parser.add_heading("state that workers keep")
    add_own(
        "--keep-memory SIZE|PERCENT",
        "memory of this host for state that workers keep, such as 64GB; 0 is none",
        flag_values.memory_share,
        default=KEEP_SHARE,
        by_default=f"{KEEP_SHARE:.0%}",
    )
    add_own(
        "--keep-rate SIZE",
        "bytes a second of other nodes' state that are copied to this node; 0 is none",
        flag_values.rate,
        default=KEEP_RATE,
        by_default=f"{KEEP_RATE / 1e6:g}MB",
    )
    add_own(
        "--keep-timeout S",
        "seconds to save what workers keep when their round is over; in a planned stop within --stop-timeout",
        seconds_or_zero,
        default=KEEP_TIMEOUT_S,
    )
    add_own(
        "--persist DIR",
        "write what workers give to ctx.keep to this directory, which all nodes share, and resume from there",
        folder,
    )
    add_own("--persist-every S", "seconds between two steps on the disk", seconds, default=PERSIST_EVERY_S)
    add_own("--persist-keep N", "how many steps stay on the disk", flag_values.retained_steps, default=PERSIST_KEEP)


def add_output_flags(parser: SettingsParser, *, template_variable: str) -> None:
    """Add the flags for the workers' output; `template_variable` is torchrun's variable for the template."""
    parser.add_heading("output of workers")
    add, add_own = parser.add_setting, partial(parser.add_setting, prefix=PREFIX)
    add(
        "--log-dir DIR",
        "all output goes into DIR/JOB/RUN/round_N/RANK/{stdout,stderr}.log, and to the terminal as well",
        folder,
    )
    add(
        "--redirects -r STREAMS",
        "streams that go into files only: 1 (stdout), 2 (stderr), 3 (both), or by local rank, such as 0:1,12:3",
        flag_values.streams,
        default=Choice(),
    )
    add(
        "--tee -t STREAMS",
        "streams that go into files and to the terminal, even if redirected",
        flag_values.streams,
        default=Choice(),
    )
    add(
        "--log-line-prefix-template TEXT",
        "a prefix for each line on the terminal; ${hostname}, ${host} (without the domain), ${role_name}, ${rank} and"
        " ${local_rank} are replaced",
        variables=(template_variable, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
    )
    add(
        "--local-ranks-filter RANKS",
        "local ranks whose output reaches the terminal, such as 0,1",
        flag_values.local_ranks,
        array=joined,
    )
    for stream in ("stdout", "stderr"):
        add(
            f"--duplicate-{stream}-filters WORDS",
            f"lines of {stream} with any of these words also go into filtered_{stream}.log (',,' is a comma)",
            flag_values.filter_words,
            array=flag_values.filter_words_joined,
            default=(),
        )
    add_own(
        "--log-rotate SIZE",
        "begin a new file when one has this size, such as 100MB",
        flag_values.size,
        by_default="never",
    )
    add_own("--log-rotations-kept N", "old files kept of each", flag_values.count, default=ROTATIONS_KEPT)
    add_own(
        "--log-keep N|all",
        "rounds of the job whose files stay on this host, besides the last failed one",
        flag_values.retained_rounds,
        by_default="all",
    )


def add_node_flags(parser: SettingsParser) -> None:
    """Add the flags that torchrun does not have: access, topology, checks, log and times of a node."""
    parser.add_heading("connection to the coordinator")
    add_access_flags(parser)
    parser.add_heading("this node")
    add = partial(parser.add_setting, prefix=PREFIX)
    add(
        "--interface NAME",
        "network interface that gloo and NCCL use, and at whose address other nodes reach this one",
        flag_values.name,
    )
    add(
        "--topology KEY",
        "nodes with neighbouring keys (rack, switch) get neighbouring ranks; copies of kept state go to another key",
        flag_values.topology,
        default="",
    )
    add(
        "--health-check COMMAND",
        "checks this host when it joins and after a failure; exit code 0: good, 1: a warning, 2: rounds do without it",
        flag_values.command,
        array=shlex.join,
        default=(),
    )
    add("--no-builtin-check", "skip nodeclient's own check of GPUs, disks, clock and network, made at the same times")
    parser.add_heading("nodeclient's own log")
    add("--log-level LEVEL", "debug, info, warning, error", str.lower, choices=LEVELS, default="info")
    add(
        "--log-format",
        "for people, or for machines: one JSON object a line",
        str.lower,
        choices=FORMATS,
        default="text",
    )
    parser.add_heading("times")
    add("--join-timeout S", "seconds to wait for a round", seconds, default=JOIN_TIMEOUT_S)
    add(
        "--stop-timeout S",
        "seconds from the beginning of a planned stop until workers are killed",
        seconds_or_zero,
        default=STOP_TIMEOUT_S,
    )
    add(
        "--abort-timeout S",
        "seconds that workers get in any other stop, and to abort NCCL",
        seconds_or_zero,
        by_default=f"{ABORT_TIMEOUT_S:g}, and {NCCL_ABORT_TIMEOUT_S:g} for NCCL",
    )


def add_file_flags(parser: SettingsParser) -> None:
    """Add the flags for a settings file, and for showing the settings."""
    parser.add_heading("settings in a file")
    parser.add_config_file(f"{PREFIX}_CONFIG")
