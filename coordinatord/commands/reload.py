"""Handles SIGHUP of a coordinatord that serves: it reads the settings again, and logs what has changed.

Settings of decisions and of the log change at once. The address, the store and the like change only with a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from coordinatord.config.serve_flags import ServeConfig
from coordinatord.config.subcommands import parse
from coordinatord.core.policy import Policy
from coordinatord.runtime import logs
from coordinatord.runtime.logs import LEVELS, fields
from coordinatord.runtime.settings import SettingsError

log = logging.getLogger(__name__)

AT_ONCE: dict[str, Callable[[ServeConfig], object]] = {
    "settle": lambda settings: settings.policy.settle_s,
    "heartbeat": lambda settings: settings.policy.heartbeat_s,
    "retry-pause": lambda settings: settings.policy.retry_pause_s,
    "outage-grace": lambda settings: settings.policy.outage_grace_s,
    "log-level": lambda settings: settings.log_level,
    "log-format": lambda settings: settings.log_format,
}
"""Settings that a reload changes, by their names."""

AFTER_RESTART: dict[str, Callable[[ServeConfig], object]] = {
    "host": lambda settings: settings.host,
    "port": lambda settings: settings.port,
    "allowed-hosts": lambda settings: ",".join(settings.allowed_hosts) or "none",
    "insecure": lambda settings: "on" if settings.insecure else "off",
    "tls-cert": lambda settings: settings.certificate or "none",
    "tls-key": lambda settings: settings.key or "none",
    "tls-client-ca": lambda settings: settings.client_authorities or "none",
    "store": lambda settings: "none" if settings.shared is None else settings.shared.place,
    "lease": lambda settings: "none" if settings.shared is None else settings.shared.lease_s,
    "advertise": lambda settings: "none" if settings.shared is None else settings.shared.advertise or "none",
    "state-dir": lambda settings: settings.state_dir or "none, it is in memory",
}
"""Settings that a reload cannot change."""


class Reloader:
    """The settings in force; carries out a change of them."""

    def __init__(
        self,
        settings: ServeConfig,
        change_policy: Callable[[Policy], None],
        reload_security: Callable[[], None] = lambda: None,
        read: Callable[[], object] = parse,
    ) -> None:
        """Begin with `settings`.

        `change_policy` gives the coordinator other numbers to decide by, `reload_security` reads certificate and tokens
        again, and `read` the settings.
        """
        self.settings = settings
        self._reload_security = reload_security
        self._change_policy = change_policy
        self._read = read

    def reload(self) -> None:
        """Read the settings again, and apply the changes that can be applied; if one is wrong, all stay as they are."""
        self._reload_security()
        try:
            new = self._read()
        except SettingsError as error:
            names = fields("reload_failed")
            log.error("not reloaded, all settings stay as they were: %s", error.message, extra=names)  # noqa: TRY400
            return
        assert isinstance(new, ServeConfig)  # noqa: S101 - the same command line as at the start
        old = self.settings
        now = self.settings = replace(
            new,
            host=old.host,
            port=old.port,
            allowed_hosts=old.allowed_hosts,
            state_dir=old.state_dir,
            shared=old.shared,
            insecure=old.insecure,
            certificate=old.certificate,
            key=old.key,
            client_authorities=old.client_authorities,
        )
        quieter = LEVELS.index(now.log_level) > LEVELS.index(old.log_level)
        if quieter:
            _announce(old, new)
        logs.configure(now.log_level, "coordinatord", now.log_format)
        if not quieter:
            _announce(old, new)
        if now.policy != old.policy:
            self._change_policy(now.policy)


def _announce(old: ServeConfig, new: ServeConfig) -> None:
    changed, waiting = _changes(AT_ONCE, old, new), _changes(AFTER_RESTART, old, new)
    text = f"settings reloaded: {', '.join(changed) or 'nothing has changed'}"
    if waiting:
        text += f"; not before a restart: {', '.join(waiting)}"
    log.info("%s", text, extra=fields("settings_reloaded"))


def _changes(readers: dict[str, Callable[[ServeConfig], object]], old: ServeConfig, new: ServeConfig) -> list[str]:
    """Return texts such as `settle 2 to 3`, for the settings that have changed."""
    values = [(name, value_in(old), value_in(new)) for name, value_in in readers.items()]
    return [f"{name} {_plain(before)} to {_plain(after)}" for name, before, after in values if before != after]


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
