"""Translates the flags of torchrun's rendezvous: chooses the coordinators that take the place of its backend.

Under torchrun, a backend (`--rdzv-backend`) has the nodes meet: a store that one of them serves (`c10d`, `static`), or
etcd. Here nodes always meet at a coordinatord. Where torchrun needs no other program, none is needed here either: the
node on the host of the endpoint starts a coordinator, or a job of one host brings its own along.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec import Struct

from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.text import clip, most_similar
from coordinatord.runtime.settings import SettingsParser, joined, port
from nodeclient.config import flag_values
from nodeclient.config.join_config import DEFAULT_JOB

Value = TypeVar("Value")

OURS = "coordinatord"
BACKENDS = (OURS, "c10d", "static", "etcd", "etcd-v2")
"""The values of `--rdzv-backend`."""

HOSTED_BY_A_NODE = frozenset({"c10d", "static"})
"""The backends whose store one of the nodes serves in torchrun. Here that node starts the coordinator instead."""

MASTER_ADDRESS = "127.0.0.1"
MASTER_PORT = 29_500
"""torchrun's defaults of `--master-addr` and `--master-port`."""

LOCALHOST = Endpoint("localhost", 29_400)
"""The default endpoint of torchrun's c10d."""

CONF_KEYS = {
    **dict.fromkeys(("join_timeout", "is_host"), ""),
    "timeout": "--join-timeout",
    "last_call_timeout": "coordinatord's --settle",
    **dict.fromkeys(("keep_alive_interval", "heartbeat", "heartbeat_timeout"), "coordinatord's --heartbeat"),
    "keep_alive_max_attempt": "five heartbeats",
    "rank": "--node-rank",
    **dict.fromkeys(
        ("cas_backoff_max_seconds", "close_timeout", "read_timeout", "store_type", "use_libuv"), "not needed"
    ),
    **dict.fromkeys(
        ("protocol", "etcd_prefix", "cert", "key", "cacert", "ssl_cert", "ssl_cert_key", "ca_cert"),
        "of etcd, not needed",
    ),
}
"""The keys of `--rdzv-conf` that some backend of torchrun reads, and their replacements; empty if nothing differs."""

IGNORING_TIMEOUT = frozenset({"c10d", "etcd-v2"})
"""The backends of torchrun that read the key `timeout` and ignore it."""

_STORE_TYPE = "tcp"
"""The only accepted store type: the other one, `file`, has no address for a coordinator."""


class Rendezvous(Struct, frozen=True):
    """Where this node meets the others; without coordinators, it is a job on one host."""

    coordinators: tuple[Endpoint, ...] = ()
    own_coordinator: bool = False
    """Whether this node may start the coordinator; see `JoinConfig`."""
    static: bool = False
    """Whether users set the ranks of nodes. A node without one asks for rank 0, as under torchrun."""
    remarks: tuple[str, ...] = ()


def add_rendezvous_flags(parser: SettingsParser) -> None:
    """Add the flags for the rendezvous of nodes."""
    parser.add_heading("where nodes meet")
    add = parser.add_setting
    add(
        "--rdzv-endpoint --coord HOST[:PORT][,...]",
        "where coordinatord listens (port: 29400)",
        flag_values.endpoints_of_torchrun,
        dest="coord",
        array=joined,
        default=(),
    )
    add("--rdzv-backend NAME", f"{', '.join(BACKENDS)}: coordinatord does the work of all of them", by_default=OURS)
    add(
        "--rdzv-id --job-id ID",
        "nodes with the same id train together",
        flag_values.name,
        dest="job_id",
        by_default=DEFAULT_JOB,
    )
    add("--rdzv-conf KEY=VALUE,...", "keys of torchrun's backends", flag_values.pairs, array=joined, default={})
    add("--standalone", "bring a coordinator along: a job on this host only")
    add("--master-addr ADDR", "address of the host with node rank 0", by_default=MASTER_ADDRESS)
    add("--master-port N", "port of the coordinator there", port, by_default=MASTER_PORT)
    add(
        "--local-addr --advertise-addr ADDR",
        "the address at which other nodes reach this one, if the one found is wrong",
        flag_values.address,
        dest="advertise_addr",
    )


def choose_coordinators(parser: SettingsParser, given: argparse.Namespace, most: int) -> Rendezvous:
    """Choose the coordinators of a job of at most `most` nodes. Raises `SettingsError`."""
    backend = given.rdzv_backend or OURS
    if backend not in BACKENDS:
        parser.error(f"--rdzv-backend {backend} is not known here, only {', '.join(BACKENDS)}")
    is_host = read_conf(parser, given.rdzv_conf, "is_host", flag_values.truth)
    named = given.coord
    if given.standalone:
        return Rendezvous(remarks=(f"--standalone: {', '.join(map(str, named))} is not used",) if named else ())
    if any(endpoint.port == 0 for endpoint in named):
        if most > 1:
            parser.error("--rdzv-endpoint has port 0, where other nodes cannot find it: give coordinatord's port")
        named = ()
    has_master = bool(given.master_addr) or given.master_port is not None
    if not named and most == 1:
        flags = "--master-addr or --master-port" if has_master else f"--rdzv-backend {backend}"
        remark = f"{flags}: not needed for a job on this host only, nodeclient brings a coordinator along"
        return Rendezvous(remarks=(remark,) if has_master or backend != OURS else ())
    if given.rdzv_backend is None and has_master and not named:
        backend = "static"  # torchrun's default
    coordinators = named or _default_coordinators(parser, given, backend)
    hosted = backend in HOSTED_BY_A_NODE if is_host is None else is_host
    remarks = _backend_remarks(backend, coordinators, hosted=hosted)
    return Rendezvous(coordinators, hosted, backend == "static", remarks)


def _default_coordinators(parser: SettingsParser, given: argparse.Namespace, backend: str) -> tuple[Endpoint, ...]:
    """Return the coordinators if `--rdzv-endpoint` names none. Raises `SettingsError`."""
    if backend == "c10d":
        return (LOCALHOST,)
    if backend != "static":
        parser.error(
            "for a job on more than this host, give --rdzv-endpoint HOST[:PORT], where coordinatord listens"
            " (or --master-addr, where the host with node rank 0 is to bring one along)"
        )
    host = (given.master_addr or MASTER_ADDRESS).removeprefix("[").removesuffix("]")
    where = Endpoint(host, MASTER_PORT if given.master_port is None else given.master_port)
    try:
        return (flag_values.endpoint(str(where)),)
    except argparse.ArgumentTypeError as error:
        parser.error(f"--master-addr and --master-port: {error}")


def _backend_remarks(backend: str, coordinators: tuple[Endpoint, ...], *, hosted: bool) -> tuple[str, ...]:
    if backend == OURS:
        return ()
    where = ", ".join(map(str, coordinators))
    if backend not in HOSTED_BY_A_NODE:
        return (f"--rdzv-backend {backend}: no etcd is used, but coordinatord, which is expected at {where}",)
    host = "which the host with that address starts if needed" if hosted else "which runs on another host"
    own = "; node ranks are preferences, and each round has a master port of its own" if backend == "static" else ""
    return (f"--rdzv-backend {backend}: coordinatord at {where} takes its place, {host}{own}",)


def read_conf(parser: SettingsParser, conf: Mapping[str, str], key: str, read: Callable[[str], Value]) -> Value | None:
    """Read one value of `--rdzv-conf`; None if it is not there. Raises `SettingsError`."""
    if key not in conf:
        return None
    try:
        return read(conf[key])
    except argparse.ArgumentTypeError as error:
        parser.error(f"--rdzv-conf {key}: {error}")


def remarks_on_conf(parser: SettingsParser, conf: Mapping[str, str], backend: str | None) -> tuple[str, ...]:
    """Return remarks on keys that a backend of torchrun has, and on unknown keys. Raises `SettingsError`."""
    if conf.get("store_type", _STORE_TYPE).lower() != _STORE_TYPE:
        parser.error("--rdzv-conf store_type=file: nodes meet at coordinatord and not in a file, see --rdzv-endpoint")
    meanings = CONF_KEYS | ({"timeout": f"ignored, as by torchrun's {backend}"} if backend in IGNORING_TIMEOUT else {})
    replaced = [f"{key} is {meanings[key]}" for key in conf if meanings.get(key)]
    unknown = [f"--rdzv-conf: {unknown_key(key)}" for key in conf if key not in CONF_KEYS]
    return (*((f"--rdzv-conf: here {', '.join(replaced)}",) if replaced else ()), *unknown)


def unknown_key(key: str) -> str:
    """Return the remark that a key of `--rdzv-conf` is unknown, and which one may be meant."""
    near = most_similar(key, CONF_KEYS)
    return f"no backend knows the key {clip(key)!r}, it has no effect{f'; did you mean {near}?' if near else ''}"
