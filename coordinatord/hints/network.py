"""The table of known causes in the network: workers that cannot reach each other, or lose a connection. Pure.

The first row that matches counts, so a row stands before those that would match more failures. The last row about
a store that is gone matches if the reason is not known. The *store* is torch's TCPStore, which the worker
with rank 0 serves, and by which workers find each other.
"""

from __future__ import annotations

import re
from functools import partial

from coordinatord.hints.rule import HintRule
from coordinatord.protocol.messages import Cause, Failure

_network = partial(HintRule, Cause.NETWORK)
_hang = partial(HintRule, Cause.HANG)

_INTERFACES = "`ip -br address` shows the interfaces of a host"

_HIDDEN_NETWORK = r"(?P<address>127\.[\d.]+|172\.17\.[\d.]+|192\.168\.122\.[\d.]+|169\.254\.[\d.]+|::1|fe80:[\w:]+)"
"""Addresses of loopback, docker0, virbr0 and link-local ones, which other hosts cannot reach."""

_PEER_GONE_NCCL = (
    r"ncclRemoteError|remote process (?:has terminated|exited|exiting)|NCCL WARN .*Connection closed by remote"
    r"|NCCL has reported COMM_ERROR"  # at the gate before the optimizer, see `workerlib.keeping.gate`
)
_PEER_GONE_GLOO = r"gloo/transport/.*(?:Connection (?:reset|closed) by peer|Broken pipe)"
"""gloo's error for a connection that the peer's process, or its kernel, has closed."""
_GLOO_TIMED_OUT = r"gloo/transport/.*Timed out waiting \d+ms for (?:recv|send) operation"
_STORE_GONE = r"Did the remote server shutdown or crash\?"
_STORE_BROKEN = rf"DistNetworkError: (?:.*{_STORE_GONE}|Broken pipe|Connection reset by peer)"

_ONE_STORE = "start it by python -m workerlib.store, which serves one store for all of its groups"

NETWORK = (
    HintRule(
        Cause.USER_CODE,
        "different collectives",
        "the ranks came to different collectives, and any of them may be the one that went astray: look for an "
        "exception that one catches while the others go on, for one in a branch that not all take, and for sizes that "
        "differ. TORCH_DISTRIBUTED_DEBUG=DETAIL names the first that differs",
        r"Is there a distributed collective mismatch in your code\?|Detected mismatch between collectives on ranks",
        anywhere=True,
    ),
    _network(
        "store gone while a group is made",
        "the store at rank 0 ended while this worker made a process group: if the script destroys a process group and "
        f"makes another, {_ONE_STORE}; otherwise look for why the worker with rank 0 ended",
        rf"(?s)(?:_env_rendezvous_handler|_new_process_group_helper).*{_STORE_BROKEN}",
        anywhere=True,
    ),
    _network(
        "store gone early",
        "the store at rank 0 is gone, and a worker had ended well before: if that was rank 0, its store ended with it. "
        "Have all workers wait for each other at their end (torch.distributed.barrier()), so that none uses the store "
        "after rank 0",
        _STORE_BROKEN,
        early=True,
    ),
    _network(
        "peer ended early",
        "the worker that failed waited for one that had exited with 0: they disagree on how many steps there are. Most "
        "often the data is uneven (drop_last=True, a DistributedSampler, or torch.distributed.algorithms.Join), or one "
        "of them returns or calls sys.exit(0) under a condition of its own",
        f"{_PEER_GONE_NCCL}|{_PEER_GONE_GLOO}|{_GLOO_TIMED_OUT}|{_STORE_GONE}",
        anywhere=True,
        early=True,
    ),
    _network(
        "NCCL on a hidden network",
        "NCCL chose {address}, which is of loopback, docker0, virbr0 or one link, so that other hosts cannot reach it: "
        f"set NCCL_SOCKET_IFNAME on all nodes to the interface that joins them ({_INTERFACES})",
        rf"(?:socket(?:Start|Poll)Connect: |NCCL WARN )Connect to {_HIDDEN_NETWORK}<\d+>",
        anywhere=True,
    ),
    _network(
        "NCCL cannot connect",
        "NCCL cannot reach {address}: it chose the wrong interface (set NCCL_SOCKET_IFNAME on all nodes to the one "
        f"that joins them; {_INTERFACES}), or a firewall stops it; NCCL_DEBUG=INFO shows what it does",
        r"(?:socket(?:Start|Poll)Connect: |NCCL WARN )Connect to (?P<address>[\w.:%-]+)<\d+>",
        anywhere=True,
    ),
    _network(
        "NCCL finds no interface",
        "NCCL finds no interface on {host} that it may use: is NCCL_SOCKET_IFNAME set to one that this host does not "
        f"have? ({_INTERFACES}; 'eth,en' stands for all that begin so)",
        r"Bootstrap : no socket interface found|connecting to address  with family",
        anywhere=True,
    ),
    _network(
        "NCCL system error",
        "NCCL could not use the network or shared memory; its warning says which: start it again with NCCL_DEBUG=WARN. "
        "Most often NCCL_SOCKET_IFNAME is wrong, a firewall stops it, or /dev/shm is full (docker --ipc=host)",
        r"unhandled system error|ncclSystemError",
        anywhere=True,
    ),
    _network(
        "peer gone, NCCL",
        "another worker's connection broke: look for one that ended or was killed at that time, or for a network "
        "fault; this worker is probably not the cause",
        _PEER_GONE_NCCL,
        anywhere=True,
    ),
    _network(
        "gloo without interface",
        "gloo finds no address for {interface} on {host}: GLOO_SOCKET_IFNAME must name an interface of this host "
        f"({_INTERFACES}), and the host's name must be in DNS or /etc/hosts",
        r"Unable to find address for: (?P<interface>\S+)",
    ),
    _network(
        "gloo on a hidden network",
        "gloo was given {address}, which is of loopback or a bridge, so that other hosts cannot reach it: set "
        f"GLOO_SOCKET_IFNAME to the interface that joins the nodes ({_INTERFACES}), or correct /etc/hosts",
        rf"gloo/transport/tcp/.*connect \[(?:::ffff:)?{_HIDDEN_NETWORK}\]",
    ),
    _network(
        "gloo cannot connect",
        "gloo cannot reach another worker: it uses the wrong interface (set GLOO_SOCKET_IFNAME to the one that joins "
        f"the nodes; {_INTERFACES}), a firewall stops it, or that worker has ended. If the script destroys a process "
        f"group and makes another: {_ONE_STORE}",
        (
            r"connectFullMesh failed|gloo/transport/tcp/.*"
            r"(?:connect \[.*(?:refused|timed out|No route to host)|Connect timeout)"
        ),
    ),
    _network(
        "peer gone, gloo",
        "another worker's connection broke: look for one that ended, was killed or destroyed its process group at that "
        "time, or for a network fault; this worker is probably not the cause",
        _PEER_GONE_GLOO,
    ),
    _network(
        "name not resolved, by torch",
        "{host} cannot resolve {name}: give the node of that name an address that the others know (--advertise-addr "
        "IP), or correct DNS or /etc/hosts",
        r"network addresses of \((?P<name>[^,]+), \d+\) cannot be retrieved",
        anywhere=True,
    ),
    _network(
        "name not resolved",
        "{host} cannot resolve a host's name: correct DNS or /etc/hosts; if it is the name of a node, that node can "
        "give its address instead (--advertise-addr IP)",
        (
            r"gaierror|Name or service not known|Temporary failure in name resolution|Name does not resolve"
            r"|Failed to resolve '"
        ),
    ),
    _network(
        "no name server answers",
        "torch asked for the name of rank 0's address, and no name server answered {host} in the time to connect: have "
        "one that answers, if only that it knows no such name, or put the addresses of the nodes into /etc/hosts",
        r"(?s)\A(?=.*client socket has timed out after)(?=.*hostname of the client socket cannot be retrieved)",
        anywhere=True,
    ),
    _network(
        "store not reached",
        "nothing answered at {address}:{port}, where rank 0 serves the store: rank 0 has not called "
        "init_process_group() in time, the script uses an address of its own instead of MASTER_ADDR and MASTER_PORT, "
        "or a firewall stops it",
        r"timed out after \d+ms while trying to connect to \((?P<address>[^,]+), (?P<port>\d+)\)",
    ),
    _hang(
        "not all came",
        "not every worker called init_process_group(): some take longer (see timeout=) or never call it, or the script "
        "gives it a world_size of its own",
        r"waiting for clients\. \d+/\d+ clients joined",
    ),
    _hang(
        "peer late at the store",
        "another worker did not come to the same point in time: it is slower (see timeout= of init_process_group), "
        "hangs, or makes its process groups in another order",
        r"DistStoreError: wait timeout after \d+ms|store->get\('[^']*'\) got error: (?:wait timeout|Timeout)",
        waits=True,
    ),
    _network(
        "store gone",
        "the store at rank 0 is gone: look for why the worker with rank 0 ended; this worker is probably not the cause",
        _STORE_BROKEN,
    ),
    _network(
        "port in use, of torch",
        "another process on {host} has port {port} (`ss -ltnp` shows which): use MASTER_PORT as it is given, it is new "
        "in each round; a port of the script's own may still be held by another job",
        r"failed to (?:listen on|bind to).*port: (?P<port>\d+).*(?:EADDRINUSE|address already in use)",
    ),
    _network(
        "port in use",
        "another process on {host} has the port that the script wants (`ss -ltnp` shows which): use MASTER_PORT for "
        "torch, which is new in each round, and port 0 for servers of the script's own",
        r"EADDRINUSE|[Aa]ddress already in use",
    ),
    _network(
        "server not reached",
        "the script's connection to a server, or to another process of {host}, broke or could not be made: is it up, "
        "and can {host} reach it?",
        # ENETUNREACH, ECONNRESET, ETIMEDOUT, ECONNREFUSED and EHOSTUNREACH
        r"(?m:^)Connection(?:Refused|Reset|Aborted)Error: |\[Errno (?:101|104|110|111|113)\]",
    ),
    _hang(
        "collective timed out",
        "not all workers came to the same {operation} in time: they disagree on what comes next (uneven batches, a "
        "collective under `if rank == 0`), one is much slower (see timeout= of init_process_group), or one hangs; "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL tells which",
        r"Watchdog caught collective operation timeout: \w+\(.*OpType=(?P<operation>\w+)",
        anywhere=True,
        waits=True,
    ),
    _hang(
        "gloo timed out",
        "another worker did not come to the same collective in time: they disagree on what comes next (uneven batches, "
        "a collective under `if rank == 0`), one is much slower (see timeout= of init_process_group), or one hangs",
        _GLOO_TIMED_OUT,
        waits=True,
    ),
)


_NCCL_PEER_CLOSED = r"Connection closed by remote peer"
"""NCCL's text below the exception. Its ncclRemoteError without this text may be a network fault."""


def lost_connection(failure: Failure) -> bool:
    """Whether a worker failed because a peer closed its connection, by the worker's output.

    Such a failure is a sign that the process of another worker has ended, and no proof: the user's program may write
    anything. After a timeout or a network error the peer may still live, so these do not count.
    """
    lines = "\n".join(failure.last_lines)
    gloo = re.search(_PEER_GONE_GLOO, failure.error or lines)
    return bool(gloo or re.search(_NCCL_PEER_CLOSED, f"{failure.error}\n{lines}"))
