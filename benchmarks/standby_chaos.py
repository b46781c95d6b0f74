"""Takes the leader away under a training, again and again: no worker restarts, and no round or rank changes.

python -m benchmarks.standby_chaos --times 100

Two coordinators share an etcd of three members. Each time the one that leads is killed, ended, told to step down, or
paused and continued, drawn by chance; now and then a member of etcd is killed with it. The program ends with 1 if any
worker was started twice. Each kind once is a test, in `tests/chaos/test_standby.py`.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tables import spread

from coordinatord.config.store_flags import LEASE_S
from tests.support.cluster import TRAINING
from tests.support.programs import wait_until
from tests.support.standbys import LEADS, Pair, on_this_host

MEMBERS = 3

MEMBER_SHARE = 0.2
"""The share of takeovers in which a member of etcd is killed at the same time."""


def kill(pair: Pair, place: int) -> None:
    """Kill the leader."""
    pair.coordinators[place].process.kill()
    pair.coordinators[place].wait()


def end(pair: Pair, place: int) -> None:
    """End the leader, as an upgrade does."""
    code = pair.coordinators[place].stop()
    if code:
        raise AssertionError(f"the leader ended with {code}:\n{pair.coordinators[place].output}")


def step_down(pair: Pair, place: int) -> None:
    """Have the leader stand by."""
    del place
    pair.step_down(on="a")


def pause(pair: Pair, place: int) -> None:
    """Stop the leader."""
    pair.coordinators[place].signal(signal.SIGSTOP)


def begin_again(pair: Pair, place: int) -> None:
    """Start the former leader again."""
    pair.start(place)


def go_on(pair: Pair, place: int) -> None:
    """Let the former leader go on."""
    pair.coordinators[place].signal(signal.SIGCONT)


def nothing(pair: Pair, place: int) -> None:
    """Do nothing: it stands by already."""
    del pair, place


Act = Callable[[Pair, int], None]

KINDS: dict[str, tuple[Act, Act]] = {
    "killed": (kill, begin_again),
    "ended": (end, begin_again),
    "told to step down": (step_down, nothing),
    "paused": (pause, go_on),
}
"""What happens to the leader, and what to the former one once the other leads."""


def turns(pair: Pair) -> int:
    """Return how often the coordinators that run have begun to lead."""
    return sum(LEADS in line for coordinator in pair.coordinators for line in coordinator.lines)


def has_turned(pair: Pair, before: int) -> bool:
    """Whether one has begun to lead since there were so many turns."""
    return turns(pair) > before


def leader_of(pair: Pair) -> list[int]:
    """Return the place of the one that leads, by their own accounts, if the other one stands by; else nothing.

    On a busy machine a lease may be lost without our doing.
    """
    words = [pair.last_role(place) for place in (0, 1)]
    return [words.index("leads")] if sorted(words) == ["leads", "stands by"] else []


def play(pair: Pair, times: int, chance: random.Random) -> dict[str, list[float]]:
    """Take the leader away so often; return the times until another one led, and until the job was whole there."""
    took: dict[str, list[float]] = defaultdict(list)
    for number in range(1, times + 1):
        [place] = wait_until("one to lead, and the other one to stand by", partial(leader_of, pair))
        kind = chance.choice(list(KINDS))
        member = chance.randrange(MEMBERS) if chance.random() < MEMBER_SHARE else None
        if member is not None:
            pair.etcd.kill(member)
        take, bring_back = KINDS[kind]
        begun, before = time.monotonic(), turns(pair)
        take(pair, place)
        wait_until("another turn", partial(has_turned, pair, before))
        leads_s = time.monotonic() - begun
        pair.await_running()
        whole_s = time.monotonic() - begun
        bring_back(pair, place)
        if member is not None:
            pair.etcd.start(member)
            pair.etcd.await_healthy(member)
        took[f"{kind}: another one leads"].append(leads_s)
        took[f"{kind}: all nodes are attached"].append(whole_s)
        beside = "" if member is None else f", member {member} of etcd killed"
        print(f"  {number}: {kind}{beside}: leads after {leads_s:.1f} s, whole after {whole_s:.1f} s", flush=True)
    return took


def main() -> None:
    """Play, and say what the takeovers took. Exits with 1 if a worker was started twice."""
    parser = argparse.ArgumentParser(prog="standby_chaos", description="Take the leader away under a training.")
    parser.add_argument("--times", type=int, default=100, help="how many takeovers (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="for what is drawn (default: 1)")
    parser.add_argument("--lease", type=float, default=LEASE_S, help=f"the leader's, in seconds (default: {LEASE_S:g})")
    parser.add_argument("--tls", action="store_true", help="over TLS and with tokens, as by default, not in the clear")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder, "home") if options.tls else None
        pair = on_this_host(stack, Path(folder), MEMBERS, lease_s=options.lease, home=home)
        nodes = [pair.join(name, TRAINING) for name in "ab"]
        nodes[0].await_event("sum", sum=2)
        pair.await_running()
        took = play(pair, options.times, random.Random(options.seed))  # noqa: S311 - chaos, no secret
        before = len(nodes[0].events)
        wait_until("the training to go on", lambda: len(nodes[0].events) > before)
        events = [event for node in nodes for event in node.events]
        workers = {event["pid"] for event in events}
        rounds = {event["round"] for event in events}
        ranks = {(event["pid"], event["rank"]) for event in events}
    for what, values in sorted(took.items()):
        print(f"  {what}, s: {spread(values, '.1f')}")
    print(f"{options.times} takeovers, {len(workers) - len(nodes)} worker restarts, rounds {sorted(rounds)}")
    sys.exit(len(workers) != len(nodes) or rounds != {1} or len(ranks) != len(nodes))


if __name__ == "__main__":
    main()
