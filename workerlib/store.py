"""Serves torch's store at MASTER_ADDR:MASTER_PORT, which the workers of a round use to find each other.

Under torchrun, its agent serves the store. Under nodeclient, rank 0 serves it in `init_process_group`. A script that
connects before that, as torchft's `Manager` does, would wait for ever. For such scripts this module serves the store
before they begin:

    nodeclient join --coord HOST --job-id mnist -- python -m workerlib.store train.py --lr 0.1

The store is a thread of native code in rank 0's process, so it ends with the round, and each round has a new one.

A store that torch makes listens at every address of the host, without authentication. The one that is made here, also
for `workerlib.init`, listens only at MASTER_ADDR, which is the loopback address if all workers are on one host.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import runpy
import socket
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workerlib import responder
from workerlib.contract.env import NotLaunchedError, WorkerEnvironment

if TYPE_CHECKING:
    import torch.distributed

USAGE_ERROR = 64
"""The value of EX_USAGE in sysexits.h, with which nodeclient exits if its own arguments are wrong."""

TIMEOUT = timedelta(minutes=30)
"""How long the store's calls wait: torch's own default for process groups."""

LISTENS_WITHIN_S = 1.0
"""How long other ranks check whether rank 0 listens, before torch connects in any case."""

PAUSE_S, PAUSE_S_MAX, PAUSE_GROWTH = 0.002, 0.05, 1.25
"""The first and the longest pause between two checks, and the factor from one pause to the next. Pauses grow, since
many ranks check one host. The longest one bounds how much later than possible a worker begins."""

LOCAL = "localhost"
"""The name that is the loopback on each host (RFC 6761, 6.3)."""

_Endpoint = tuple[socket.AddressFamily, Any]
"""An address family, and an address with a port as `bind` expects it."""


def main() -> None:
    """Serve the store if this is rank 0, and then run the named script, or with `-m` the named module."""
    is_module = sys.argv[1:2] == ["-m"]
    command = sys.argv[2:] if is_module else sys.argv[1:]
    if not command:
        sys.stderr.write("usage: python -m workerlib.store [-m] PROGRAM [ARGUMENT ...], by a launcher\n")
        sys.exit(USAGE_ERROR)
    try:
        environment = WorkerEnvironment.from_environ(os.environ)
    except NotLaunchedError as error:
        sys.exit(f"workerlib.store: {error}")
    responder.begin()  # so that nodeclient can ask where this worker waits, also if the script never uses `workerlib`
    # The store ends with its last reference, so it is kept until the script is over.
    store = _serve_before_script(environment)
    sys.argv = command
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
    del store


def serve(environment: WorkerEnvironment, timeout: timedelta = TIMEOUT) -> torch.distributed.TCPStore:  # type: ignore[name-defined]  # public all the same
    """Serve the store at MASTER_ADDR, or at every address without a `bound_socket`; return what keeps it alive.

    Raises the errors of `TCPStore`.
    """
    import torch.distributed  # noqa: PLC0415  # importing this module stays cheap

    listener = bound_socket(environment)
    return torch.distributed.TCPStore(  # type: ignore[attr-defined]  # as above
        environment.master_address,
        environment.master_port,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),  # it is the store's from now on
        # Compared as versions; before 2.8, libuv's store takes no listening socket.
        use_libuv=listener is None or torch.__version__ >= "2.8",
    )


def bound_socket(environment: WorkerEnvironment) -> socket.socket | None:
    """Return a socket that is bound to MASTER_ADDR, for the store to listen with.

    If there can be none, write a line to standard error and return None: torch then listens at every address.
    """
    address = environment.master_address
    try:
        return _bind(_endpoint(address, environment.master_port))
    except (OSError, UnicodeError) as error:  # UnicodeError: not a host name at all
        why = getattr(error, "strerror", None) or error
        sys.stderr.write(f"workerlib: torch's store listens at every address of this host, not at {address}: {why}\n")
        return None


def await_listener(environment: WorkerEnvironment) -> None:
    """Wait until rank 0 listens, at most `LISTENS_WITHIN_S`: after a refusal, torch would wait 0.25 to 0.75 s."""
    pause, until, pause_s = threading.Event(), time.monotonic() + LISTENS_WITHIN_S, PAUSE_S
    try:
        found = socket.getaddrinfo(environment.master_address, environment.master_port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return  # torch reports the error of the name
    while (left_s := until - time.monotonic()) > 0:
        for *_, (address, *_) in found:
            with suppress(OSError), socket.create_connection((str(address), environment.master_port), left_s):
                return
        pause.wait(pause_s)
        pause_s = min(PAUSE_GROWTH * pause_s, PAUSE_S_MAX)


def _endpoint(address: str, port: int) -> _Endpoint:
    """Return the address at which the store has to listen so that all workers reach it. Raises `OSError`.

    A host name may have other addresses on other hosts, and on its own host it is often a loopback address. So a name
    must have exactly one address, which other hosts can reach. `localhost` is the loopback address everywhere.
    Raises `UnicodeError` for an invalid name.
    """
    found = {(family, endpoint) for family, *_, endpoint in socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)}
    if address == LOCAL:
        return min(found)  # its IPv4 address, if it has both: workers on one host try each address of the name
    if len(found) > 1:
        raise OSError(errno.EADDRNOTAVAIL, "this name has several addresses")
    [(family, endpoint)] = found
    if not _is_numeric(address) and ipaddress.ip_address(str(endpoint[0]).partition("%")[0]).is_loopback:
        raise OSError(errno.EADDRNOTAVAIL, "this host resolves the name to its loopback address, and others may not")
    return family, endpoint


def _is_numeric(address: str) -> bool:
    try:
        ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return True


def _bind(where: _Endpoint) -> socket.socket:
    """Return a socket bound to one address, for the store to listen with. Raises `OSError`.

    The node has reserved the same port with a socket that does not listen, so no other process has it.
    """
    family, endpoint = where
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(endpoint)
    except OSError:
        listener.close()
        raise
    return listener


def _serve_before_script(environment: WorkerEnvironment) -> object:
    """Serve the store if this is rank 0, and no agent of torchrun does; return the object that keeps it alive.

    Raises the errors of `TCPStore`.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
        return None
    # With this value, `init_process_group` connects, in rank 0 too, and its keys have a prefix for each restart.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)
    return serve(environment) if environment.rank == 0 else None  # on other ranks this imports no torch


if __name__ == "__main__":
    main()
