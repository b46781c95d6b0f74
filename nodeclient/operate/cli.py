"""Runs an operator's command: from its settings to an exit code.

It imports only the modules of the command, because a person waits for it.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from nodeclient.config.operate import (
    CommandConfig,
    EventsConfig,
    LogsConfig,
    OperateConfig,
    PageConfig,
    ReportConfig,
    StacksConfig,
    StatusConfig,
    WaitConfig,
)


def run(config: OperateConfig) -> int:  # noqa: C901, PLR0911 - one plain case a command
    """Run the command, and return the exit code. Raises `RequestError` and `OutputError`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a limited encoding still shows the other letters
    match config:
        case StatusConfig():
            from nodeclient.operate import status  # noqa: PLC0415

            return status.show(config)
        case EventsConfig():
            from nodeclient.operate import event_log  # noqa: PLC0415

            return event_log.show(config)
        case LogsConfig():
            from nodeclient.operate import worker_logs  # noqa: PLC0415

            return worker_logs.show(config)
        case StacksConfig(dumps=Path()):
            from nodeclient.operate import dumped_hang  # noqa: PLC0415

            return dumped_hang.show(config)
        case StacksConfig():
            from nodeclient.operate import worker_stacks  # noqa: PLC0415

            return worker_stacks.show(config)
        case ReportConfig():
            from nodeclient.operate import report  # noqa: PLC0415

            return report.show(config)
        case WaitConfig():
            from nodeclient.operate import job_end  # noqa: PLC0415

            return job_end.show(config)
        case PageConfig():
            from nodeclient.operate import page_link  # noqa: PLC0415

            return page_link.show(config)
        case CommandConfig():
            from nodeclient.operate import admin_commands  # noqa: PLC0415

            return admin_commands.carry_out(config)
