"""The codes with which a node ends, derived from the code: supervisors have to know each of them."""

import re
from pathlib import Path

from coordinatord.protocol.exit_codes import ExitCode
from nodeclient.config.join_config import SIGNALS

ROOT = Path(__file__).resolve().parents[2]

LEFT = {128 + signum for signum in SIGNALS}
"""The codes of a node that left after a signal."""

FOR_GOOD = {
    ExitCode.USAGE,
    ExitCode.DATA_ERROR,
    ExitCode.REFUSED,
    ExitCode.STOPPED,
    ExitCode.NO_PROGRESS,
    ExitCode.TIMED_OUT,
}
"""A node that is started again would end with these as well."""

WORTH_ANOTHER_TRY = {
    ExitCode.UNAVAILABLE,
    ExitCode.INTERNAL,
    ExitCode.OS_ERROR,
    ExitCode.IO_ERROR,
    ExitCode.TEMPFAIL,
}
"""Another try may heal these, on this host or on another one."""


def codes_of_nodes() -> set[int]:
    """Return the codes of nodes, except those of workers and 0.

    The code names them: that of nodes, without the commands of operators, and the decisions of the coordinator on runs.
    """
    ends = [file for file in (ROOT / "nodeclient").rglob("*.py") if "operate" not in file.parts]
    decisions = (ROOT / "coordinatord" / "core").rglob("*.py")
    named = {name for file in (*ends, *decisions) for name in re.findall(r"ExitCode\.(\w+)", file.read_text())}
    return {ExitCode[name].value for name in named - {"OK"}} | LEFT
