"""Finds another `workerlib` than ours on this host, before anything of it is imported.

A package index has a distribution of that name by another project (0.5.1: "Async RabbitMQ worker utilities"). Its files
go into the folder of ours, so that some modules would be ours and some not.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.runtime.own_python import PACKAGE_PARENT


class ForeignWorkerlibError(OperationalError):
    """Python would import modules of another workerlib."""

    exit_code = ExitCode.USAGE


def check_workerlib() -> None:
    """Check that `import workerlib` gives ours, and no other lies in its folder. Raises `ForeignWorkerlibError`."""
    ours = Path(PACKAGE_PARENT, "workerlib", "__init__.py")
    foreign = next(Path(PACKAGE_PARENT).glob("workerlib-*-info"), None)  # ours is of the distribution coordinatord
    if foreign is not None:
        raise ForeignWorkerlibError(
            f"{ours.parent} has files of another project: its package {foreign.stem} is installed there as well. "
            f"Uninstall both, and then install coordinatord again: {sys.executable} -m pip uninstall workerlib "
            "coordinatord"
        )
    spec = find_spec("workerlib")
    found = Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None
    if found is None:
        raise ForeignWorkerlibError(
            f"{ours} is missing, as after another project's workerlib was uninstalled: uninstall coordinatord, and "
            "install it again"
        )
    if found != ours.resolve():
        raise ForeignWorkerlibError(
            f"Python finds {found} for workerlib, and not {ours}, which coordinatord needs: rename it, uninstall its "
            "package, or take its folder out of PYTHONPATH"
        )
