"""Runs an operator's command: from its settings to an exit code."""

from __future__ import annotations

import io
import sys

from nodeclient.config import CommandConfig, EventsConfig, OperateConfig, ReportConfig, StatusConfig
from nodeclient.operate import admin_commands, event_log, report, status


def run(config: OperateConfig) -> int:
    """Do what was asked for, and return the exit code. Raises `RequestError` and `OutputError`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a letter shows the others
    match config:
        case StatusConfig():
            return status.show(config)
        case EventsConfig():
            return event_log.show(config)
        case ReportConfig():
            return report.show(config)
        case CommandConfig():
            return admin_commands.carry_out(config)
