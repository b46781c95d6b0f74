"""`nodeclient join`, our own command line: its flags, and the settings made from them.

Users of torchrun try its flags here, so each of them has a hint.
"""

from __future__ import annotations

import argparse

from coordinatord.protocol.fields import RANKS_MAX
from coordinatord.runtime.settings import SettingsParser
from nodeclient.config import flag_values, flags
from nodeclient.config.access_flags import add_coordinators
from nodeclient.config.build import FrontEnd, check_script, join_config
from nodeclient.config.command_line import CommandLine
from nodeclient.config.join_config import DEFAULT_JOB, JoinConfig
from nodeclient.workers.python_command import program_of

UNNAMED = "no --job-id: this is the job default, and all nodes without an id train together"

TORCHRUN_FLAGS = {
    "-m": "`-- python -m MODULE`",
    "--module": "`-- python -m MODULE`",
    "--no-python": "not needed, the command is run as it is",
    "--run-path": "`-- python SCRIPT`",
    "--use-env": "not needed, LOCAL_RANK is always set",
    "--rdzv-endpoint": "--coord",
    "--rdzv-id": "--job-id",
    "--rdzv-backend": "not needed, it is always coordinatord",
    "--rdzv-conf": "--join-timeout, and coordinatord's own flags",
    "--local-addr": "--advertise-addr",
    "--master-addr": "not needed, each round has its own",
    "--master-port": "not needed, each round has its own",
    "--shutdown-timeout": "--stop-timeout and --abort-timeout",
    "--monitor-interval": "not needed, the end of a worker is seen at once",
    "--start-method": "not needed, workers are programs",
    "--event-log-handler": "not needed, events are log lines",
    "--print-completion": "nodeclient --print-completion",
    "--logs-specs": "--log-dir, --redirects and --tee",
}
"""Flags of torchrun, and their replacements here."""

MOVED = {"--outage-grace": "it is a flag of coordinatord now, the same for all nodes"}
"""Former flags of ours, and the hints about them."""

HINTS = MOVED | {
    flag: f"what torchrun calls {flag} is here {ours}; or see nodeclient run" for flag, ours in TORCHRUN_FLAGS.items()
}
"""The hints about flags that `nodeclient join` lacks."""


def add_join_flags(parser: SettingsParser, nodes: str = "1:", *, of_one_node: bool = True) -> None:
    """Add the flags of `nodeclient join`, and with `of_one_node` those that make sense for one node only.

    `nodes` is the default of `--nnodes`, for the help text.
    """
    parser.usage = "nodeclient join --coord HOST[:PORT] [flags] -- COMMAND ..."
    parser.epilog = (
        f"{parser.epilog}\n"
        "Each flag can also be given as the environment variable in brackets, or in the file that --config names;"
        " with - or _ in its name. The file may also have the command, as an array of texts."
    )
    parser.add_heading("what most jobs need")
    add = parser.add_setting
    add_coordinators(parser)
    if of_one_node:
        add("--standalone", "bring a coordinator along: a job on this host only")
    add("--job-id ID", "nodes with the same id train together", flag_values.name, by_default=DEFAULT_JOB)
    flags.add_size_flags(parser, nodes=nodes, workers="one for each GPU, else 1")
    flags.add_job_flags(parser)
    if of_one_node:
        flags.add_identity_flags(parser)
        parser.add_setting(
            "--advertise-addr ADDR",
            "the address at which other nodes reach this one, if the one found is wrong",
            flag_values.address,
        )
    flags.add_node_flags(parser)
    flags.add_output_flags(parser, template_variable="NODECLIENT_LOG_LINE_PREFIX_TEMPLATE")
    flags.add_worker_flags(parser)
    flags.add_file_flags(parser)
    parser.add_command("command", metavar="COMMAND", help="what each worker runs, after --")


def _read_join(parser: SettingsParser, given: argparse.Namespace) -> JoinConfig:
    advice = "give --coord HOST[:PORT], or --standalone for a job on this host only, and not both"
    parser.exclude(given, "standalone", "coord", advice)
    if not given.standalone and not given.coord:
        parser.error("; ".join([advice, *parser.misspelt]))
    command = tuple(given.command)
    if not command:
        parser.error("give the command that each worker runs, after --, such as: -- python train.py")
    option, script = program_of(command)
    if script and not option and "${" not in script:  # a value of each worker's own is substituted later
        check_script(parser, script)
    nodes = (1, 1 if given.standalone else RANKS_MAX)
    return join_config(parser, given, FrontEnd(nodes, command, remark_if_unnamed="" if given.standalone else UNNAMED))


COMMAND_LINES = {"join": CommandLine(add_join_flags, _read_join, HINTS)}
