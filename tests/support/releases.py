"""Other releases of these programs: this one, with other versions of the protocol.

The versions are invented, since there is one so far. This release without some of its fields stands for an older one.
"""

import sys

from coordinatord.protocol.messages import Join, Observed, Phase
from coordinatord.protocol.versions import Added

LATER_ADDED = (Added(2, Join, "release"), Added(2, Observed, "killed"), Added(3, Phase, Phase.PREPARING))
"""What versions 2 and 3 of the protocol add to version 1, in these releases."""

AS_RELEASE = """
import runpy, sys
from coordinatord.protocol import messages
version, *sys.argv = sys.argv[1:]
messages.PROTOCOL_VERSION = int(version)
from coordinatord.protocol import versions
from tests.support import releases
versions.ADDED = releases.LATER_ADDED
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program as a release with another version of the protocol."""


def of_version(version: int) -> tuple[str, ...]:
    """Return the prefix of a command that runs a program as a release with this version, and those before it."""
    return sys.executable, "-c", AS_RELEASE, str(version)
