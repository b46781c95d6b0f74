"""What to do about a worker that hung, by the kind of its hang. Pure."""

from __future__ import annotations

from coordinatord.protocol.hang_kind import HangKind

HANGS = {
    HangKind.ABSENT: (
        "nothing shows what it did: `nodeclient events` says whether its node was cut off, and the log of its round "
        "what it wrote last"
    ),
    HangKind.STUCK: (
        "its stack says what it waited for, such as data, a lock or a file system of {host}; `nodeclient stacks` shows "
        "all workers while a job stands. A phase that may take long is named by `ctx.section(name, limit=SECONDS)`; "
        "--hang-timeout sets another time, or none"
    ),
    HangKind.BUSY: (
        "it computed for longer than --hang-timeout allows. An evaluation is named by `ctx.section(name, "
        "limit=SECONDS)`; else its stack shows where it loops. Without --hang-timeout a worker that computes is let "
        "alone"
    ),
    HangKind.MISMATCHED: (
        "the ranks came to different collectives: look for one in a branch that not all take, for loops of different "
        "lengths, and for sizes that differ. With TORCH_DISTRIBUTED_DEBUG=DETAIL torch itself fails at the first one "
        "that differs"
    ),
    HangKind.NETWORK: (
        "no worker is to blame: look for a link or a firewall that drops what the workers send each other, and whether "
        "they use the right interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME; NCCL_DEBUG=INFO shows it)"
    ),
}
