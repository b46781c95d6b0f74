"""Reloads the daemon's settings on SIGHUP, and logs the changes.

The policy, the log level and the log format change at once. Other settings, such as the address, need a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from msgspec.structs import replace

from coordinatord.config.serve_flags import ServeConfig
from coordinatord.config.subcommands import parse
from coordinatord.core.rounds.policy import Policy
from coordinatord.runtime import logs
from coordinatord.runtime.logs import LEVELS, fields
from coordinatord.runtime.settings import SettingsError
from coordinatord.security.setup import Security

log = logging.getLogger(__name__)


class Reloader:
    """Reads the settings again on SIGHUP, and applies what has changed, whether this coordinator leads or stands by."""

    def __init__(self, settings: ServeConfig, security: Security | None, read: Callable[[], object] = parse) -> None:
        """Begin with the settings of the start; `read` reads them again, or raises `SettingsError`."""
        self.settings = settings
        """The settings in force."""
        self._security = security
        self._read = read
        self._change_policy: Callable[[Policy], None] | None = None
        """Changes the policy of the coordinator; None while it stands by."""

    @contextmanager
    def changing(self, change_policy: Callable[[Policy], None], policy: Policy) -> Iterator[None]:
        """Call `change_policy` with each new policy within the context; `policy` is the one in use so far.

        It is called at once if there was a reload since `policy` was taken from the settings.
        """
        self._change_policy = change_policy
        try:
            if self.settings.policy != policy:
                change_policy(self.settings.policy)
            yield
        finally:
            self._change_policy = None

    def reload(self) -> None:
        """Reload certificate and tokens, then apply the reloadable settings; if a setting is wrong, change none."""
        if self._security is not None:
            self._security.reload()
        try:
            new = self._read()
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
        if self._change_policy is not None and now.policy != old.policy:
            self._change_policy(now.policy)


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
