"""Parses torchrun's parameters for this backend, and replaces our flags in texts and log lines by torchrun's."""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.utils.logging import get_logger

from coordinatord.protocol.fields import COUNTER_MAX
from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.messages import JobSpec, Launcher
from coordinatord.runtime.logs import level_number
from coordinatord.runtime.settings import SettingsError, SettingsParser, seconds
from nodeclient.access.keyring import AccessSettings, forget_variable
from nodeclient.config.access_flags import PREFIX, add_access_flags, read_access
from nodeclient.config.flag_values import address, endpoints, name
from nodeclient.config.torchrun_rendezvous import CONF_KEYS, unknown_key
from nodeclient.core.agent_settings import JOIN_TIMEOUT_S
from nodeclient.core.effects import Level
from nodeclient.host.addresses import fresh_node_id

Value = TypeVar("Value")

BACKEND = "coordinatord"
"""The name for `--rdzv-backend`, which the entry point must have as well."""

ALWAYS_ADDED = "timeout"
"""The parameter that torchrun always adds; its own c10d backend ignores it as well."""

_QUOTES = "'\""

_TORCHRUN_NAMES = {
    "--job-id": "--rdzv-id",
    "--coord": "--rdzv-endpoint",
    "--join-timeout": "--rdzv-conf join_timeout=S",
    "--advertise-addr": "--local-addr",
    "--token-file FILE": "the variable NODECLIENT_TOKEN_FILE",
    "--tls-ca": "NODECLIENT_TLS_CA",
    "--tls-cert": "NODECLIENT_TLS_CERT",
    "--tls-key": "NODECLIENT_TLS_KEY",
    "give --insecure here": "set NODECLIENT_INSECURE=1 here",
    "leave --insecure out": "leave NODECLIENT_INSECURE out",
}
"""torchrun's names of our flags, or variables instead of flags that torchrun lacks."""

_FLAG = re.compile("|".join(rf"{flag}\b(?!-)" for flag in _TORCHRUN_NAMES))
"""One of these flags, and not the beginning of a longer flag."""


class TorchrunConfig(Struct, frozen=True):
    """The settings of this backend; durations in seconds."""

    coordinators: tuple[Endpoint, ...]
    job: str
    node: str
    spec: JobSpec
    advertise_address: str | None
    join_timeout_s: float
    remark: str
    """A line to log at the start, if any."""
    access: AccessSettings = AccessSettings()
    """The places of tokens, and how to connect to the coordinator."""


def read(parameters: RendezvousParameters) -> TorchrunConfig:
    """Parse torchrun's parameters. Raises `ValueError`, which names the flag."""
    if not parameters.endpoint.strip():
        raise ValueError("--rdzv-endpoint: give HOST[:PORT], where coordinatord listens (port: 29400)")
    # torchrun keeps quotes that a shell has left around the whole value of --rdzv-conf.
    config = {key.strip(_QUOTES): str(value).strip(_QUOTES) for key, value in parameters.config.items()}
    settings = {key: value for key, value in config.items() if key != ALWAYS_ADDED}
    join_timeout = settings.pop("join_timeout", str(JOIN_TIMEOUT_S))
    known = [key for key in settings if key in CONF_KEYS]
    remarks = [f"not used by {BACKEND}: {', '.join(known)}"] if known else []
    remarks += [unknown_key(key) for key in settings if key not in CONF_KEYS]
    local = parameters.local_addr
    return TorchrunConfig(
        coordinators=_read("--rdzv-endpoint", endpoints, parameters.endpoint),
        job=_read("--rdzv-id", name, parameters.run_id),
        node=fresh_node_id(),
        # Each agent of torchrun counts its own restarts, so the coordinator sets no limit.
        spec=JobSpec(parameters.min_nodes, parameters.max_nodes, COUNTER_MAX, Launcher.TORCHRUN),
        advertise_address=_read("--local-addr", address, local) if local else None,
        join_timeout_s=_read("--rdzv-conf join_timeout", seconds, join_timeout),
        remark=f"--rdzv-conf: {'; '.join(remarks)}" if remarks else "",
        access=_access(),
    )


def _access() -> AccessSettings:
    """Read nodeclient's variables about tokens and TLS, for which torchrun has no flags.

    Workers inherit torchrun's environment, so a token in it is removed. Raises `ValueError`.
    """
    parser = SettingsParser(prog="nodeclient join", env_prefix=PREFIX, environ=dict(os.environ))
    forget_variable()
    add_access_flags(parser)
    try:
        return read_access(parser, parser.parse_args([]))
    except SettingsError as error:
        raise ValueError(with_torchrun_names(str(error))) from None


def with_torchrun_names(text: str) -> str:
    """Replace our flags in a text by torchrun's."""
    return _FLAG.sub(lambda found: _TORCHRUN_NAMES[found[0]], text)


logger = get_logger("torch.distributed.elastic.rendezvous.coordinatord")
"""A logger among torch's own, so that LOGLEVEL and torch's format apply."""


def log_coordinator(job: str, text: str) -> None:
    """Log at INFO which coordinator was found, also without LOGLEVEL, when torch logs only warnings.

    Otherwise nothing would distinguish a job of this backend from that of another.
    """
    if "LOGLEVEL" in os.environ:
        log(job, Level.INFO, text)
    else:
        file, line, function, _ = logger.findCaller()
        record = logger.makeRecord(logger.name, logging.INFO, file, line, "job %s: %s", (job, text), None, function)
        logger.handle(record)


def log(job: str, level: Level, text: str) -> None:
    """Log a text of the node, with torchrun's names of flags."""
    logger.log(level_number(level), "job %s: %s", job, with_torchrun_names(text))


def _read(flag: str, convert: Callable[[str], Value], text: str) -> Value:
    try:
        return convert(text)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{flag}: {error}") from None
