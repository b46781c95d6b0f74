"""Reloads the daemon's settings on SIGHUP, and logs the changes.

The policy, the log level and the log format change at once. Other settings, such as the address, need a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from coordinatord.config.serve_flags import ServeConfig
from coordinatord.config.subcommands import parse
from coordinatord.core.rounds.policy import Policy
from coordinatord.runtime import logs
from coordinatord.runtime.logs import LEVELS, fields
from coordinatord.runtime.settings import SettingsError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Reloader:
    """Reads the settings again on SIGHUP, and applies what has changed."""

    settings: ServeConfig
    """The settings in force."""
    change_policy: Callable[[Policy], None]
    """Changes the coordinator's policy."""
    reload_security: Callable[[], None] = lambda: None
    """Reloads certificate and tokens."""
    read: Callable[[], object] = parse
    """Reads the settings again; raises `SettingsError`."""

    def reload(self) -> None:
        """Reload certificate and tokens, then apply the reloadable settings; if a setting is wrong, change none."""
        self.reload_security()
        try:
            new = self.read()
        except SettingsError as error:
            names = fields("reload_failed")
            log.error("not reloaded, no setting has changed: %s", error.message, extra=names)  # noqa: TRY400
            return
        assert isinstance(new, ServeConfig)  # noqa: S101 - the same command line as at the start
        old = self.settings
        now = self.settings = replace(
            old, policy=new.policy, log_level=new.log_level, log_format=new.log_format, reloadable=new.reloadable
        )
        # The changes are logged at the lower one of both levels, so that the line is not lost.
        lower = min(old.log_level, now.log_level, key=LEVELS.index)
        logs.configure(lower, "coordinatord", now.log_format)
        _log_changes(old, new)
        logs.configure(now.log_level, "coordinatord", now.log_format)
        if now.policy != old.policy:
            self.change_policy(now.policy)


def _log_changes(old: ServeConfig, new: ServeConfig) -> None:
    changed, waiting = _changes(old.reloadable, new.reloadable), _changes(old.fixed, new.fixed)
    text = f"settings reloaded: {', '.join(changed) or 'nothing has changed'}"
    if waiting:
        text += f"; these need a restart: {', '.join(waiting)}"
    log.info("%s", text, extra=fields("settings_reloaded"))


def _changes(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Describe each changed setting, as in `settle 2 to 3`."""
    return [f"{name} {_plain(old[name])} to {_plain(value)}" for name, value in new.items() if value != old[name]]


def _plain(value: object) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case float():
            return f"{value:g}"
        case tuple():
            return ",".join(value) or "none"
        case None | "":
            return "none"
        case _:
            return str(value)
