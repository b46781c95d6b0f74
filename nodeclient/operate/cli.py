"""From the settings of an operator's command to its exit code: whatever goes wrong there is one line."""

from __future__ import annotations

import io
import sys

from nodeclient.config import CommandConfig, EventsConfig, OperateConfig, ReportConfig, StatusConfig
from nodeclient.operate import admin_commands, event_log, report, status
from nodeclient.operate.request_errors import RequestError


def run(config: OperateConfig) -> int:
    """Do what was asked for, and return the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a letter shows the others
    try:
        return _run(config)
    except RequestError as error:
        sys.stderr.write(f"nodeclient: {error}\n")
        return error.exit_code


def _run(config: OperateConfig) -> int:
    match config:
        case StatusConfig():
            return status.show(config)
        case EventsConfig():
            return event_log.show(config)
        case ReportConfig():
            return report.show(config)
        case CommandConfig():
            return admin_commands.carry_out(config)
