"""The program `nodeclient`: from the command line to an exit code.

There are three kinds of subcommands. `join`, `run` and `launch` make this process a node, which takes part in a job
until its end. `replay` reruns the events that led to a bug. All others are commands for operators: most send a request
to a coordinator and end.

A subcommand's modules are imported when it is chosen, so that `nodeclient --help` answers at once. The handling of
signals is set before almost anything is imported, since a user may press Ctrl-C during imports. Garbage is collected
once all is imported: until then there is none, and the search for it would take a sixth of the time.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from coordinatord.runtime.early_signals import install_signal_defaults
from coordinatord.runtime.own_python import prefer_standard_library

if TYPE_CHECKING:
    from nodeclient.config.join_config import JoinConfig
    from nodeclient.config.operate import CrashReplayConfig, OperatorConfig


def main() -> None:
    """Run the chosen subcommand and exit with its code; see docs/exit-codes.md."""
    gc.disable()
    prefer_standard_library()
    install_signal_defaults()
    code = _run()
    install_signal_defaults()  # the event loop has left Python's handler of Ctrl-C, which would raise within the exit
    gc.freeze()  # otherwise Python would look through all modules at its end
    sys.exit(code)


def _run() -> int:
    from coordinatord.protocol.exit_codes import ExitCode  # noqa: PLC0415
    from coordinatord.runtime import logs  # noqa: PLC0415 - see above
    from coordinatord.runtime.process_limits import leave_no_core_file  # noqa: PLC0415

    logs.replace_closed_streams()
    leave_no_core_file()
    try:
        from nodeclient.remote import UP_HOST  # noqa: PLC0415

        if sys.argv[1:] == [UP_HOST]:  # `nodeclient up` has started this process on its host
            from nodeclient.remote.far_end import receive_errand  # noqa: PLC0415

            code = receive_errand()
            if code is not None:
                return code
            # Now the command line in `sys.argv` is that of a node.
        return _carry_out()
    except KeyboardInterrupt:  # after the node has handled its signals
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort, which logs the whole error
        return logs.explain_end("nodeclient", error)


def _carry_out() -> int:
    from nodeclient.access.keyring import forget_variable  # noqa: PLC0415
    from nodeclient.config.parse import parse  # noqa: PLC0415

    config = parse()
    forget_variable()
    if config.PROGRAM == "replay":
        return _replay(config)
    if config.PROGRAM == "node":
        from nodeclient.host.foreign_workerlib import check_workerlib  # noqa: PLC0415

        check_workerlib()  # the next imports import workerlib
        return _join(config)
    _enable_garbage_collection()
    return operate(config)


def _enable_garbage_collection() -> None:
    """Collect garbage from now on, but not among the objects that are there: those of modules last until the end."""
    gc.freeze()
    gc.enable()


def operate(config: OperatorConfig) -> int:
    """Run a command of an operator, and return the exit code. Raises `RequestError`, `OutputError` and `HostError`."""
    import io  # noqa: PLC0415
    from importlib import import_module  # noqa: PLC0415

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a limited encoding still shows the other letters
    return int(import_module(f"nodeclient.{config.MODULE}").run(config))


def _join(config: JoinConfig) -> int:
    import os  # noqa: PLC0415

    from coordinatord.runtime import logs  # noqa: PLC0415
    from coordinatord.runtime.process_limits import allow_many_files, load_thread_end  # noqa: PLC0415
    from coordinatord.runtime.systemd import SystemdNotifier  # noqa: PLC0415
    from nodeclient.host.syscalls import check_pidfds  # noqa: PLC0415
    from nodeclient.shell.embedded_coordinator import coordinator_for  # noqa: PLC0415
    from nodeclient.shell.node import Node  # noqa: PLC0415
    from nodeclient.shell.participation import run_node  # noqa: PLC0415

    logs.configure(config.log_level, "nodeclient", config.log_format)  # until the node shares its stderr with workers
    systemd = SystemdNotifier(os.environ, os.getpid())

    async def run() -> int:
        async with coordinator_for(config) as (completed, embedded):
            return await Node(completed).run(embedded, systemd)

    check_pidfds()
    allow_many_files()
    load_thread_end()
    _enable_garbage_collection()
    return run_node(run())


def _replay(config: CrashReplayConfig) -> int:
    from coordinatord.runtime import flight_recorder  # noqa: PLC0415
    from nodeclient.core.agent import Agent  # noqa: PLC0415
    from nodeclient.core.agent_settings import Settings  # noqa: PLC0415
    from nodeclient.shell.participation import RECORDED  # noqa: PLC0415

    _enable_garbage_collection()
    agent = Agent(Settings(1, 1.0, 1.0, 1.0), 1, 0.0)  # any numbers do: the recording replaces the agent's state
    return flight_recorder.replay(config.crash, RECORDED, agent)
