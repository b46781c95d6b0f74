"""Programs that see another system than the tests do: with mounts, processes or rights of their own."""

import os
import shutil
import subprocess

import pytest

NO_RIGHTS = ("setpriv", "--inh-caps=-all", "--bounding-set=-all")
"""The prefix of a command of root's that may do with root's own files what any user may with his, and no more."""


def apart(*kinds: str, setup: str = "true") -> tuple[str, ...]:
    """Return the prefix of a command that runs in new namespaces of these `kinds`, as unshare(1) names them.

    Before it a shell runs `setup`. Skips the test where that cannot be done.
    """
    if shutil.which("unshare") is None:
        pytest.skip("namespaces need unshare of util-linux")
    prefix = ("unshare", *kinds, "sh", "-ec", f'{setup}; exec "$@"', "sh")
    tried = None if os.geteuid() else subprocess.run([*prefix, "true"], check=False, capture_output=True, text=True)
    if tried is None or tried.returncode:
        pytest.skip(f"namespaces need root and its rights: {tried.stderr.strip() if tried else 'this is another user'}")
    return prefix


def as_user(uid: int) -> tuple[str, ...]:
    """Return the prefix of a command that runs as a user without a name who may read what root may.

    Skips the test where users cannot be changed.
    """
    if os.geteuid() != 0:
        pytest.skip("only root may run programs as somebody else")
    ids = (f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    rights = "-all,+dac_read_search"
    return ("setpriv", *ids, f"--inh-caps={rights}", f"--ambient-caps={rights}", f"--bounding-set={rights}")
