"""The bad network that other tests rest on is as bad as it is set to be, and not worse."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support import datagrams
from tests.support.hosts import Hosts
from tests.support.link import Link
from tests.support.programs import Program, run, wait_until

pytestmark = pytest.mark.slow

DATAGRAMS = (sys.executable, "-S", "-E", str(Path(datagrams.__file__)))

COUNT = 400
"""The number of packets. With a loss of 30 %, four standard deviations are 9 % of them."""


class Net:
    """Two hosts on a link."""

    def __init__(self, hosts: Hosts, link: Link) -> None:
        self.hosts = hosts
        self.link = link

    @contextmanager
    def listener(self, host: str) -> Iterator[tuple[Program, str]]:
        """Listen on a host for as long as the context lasts."""
        program = Program(*self.hosts.on(host), *DATAGRAMS, "listen")
        try:
            yield program, program.await_line(r'"port": (\d+)')[1]
        finally:
            program.close()

    def command(self, host: str, what: str, to: str, *words: str) -> dict[str, float]:
        """Have a host send something to another."""
        said = run(*self.hosts.on(host), *DATAGRAMS, what, self.link.address[to], *words)
        assert said.returncode == 0, said.stderr
        heard: dict[str, float] = json.loads(said.stdout or "{}")
        return heard

    def received(self, source: str, target: str) -> list[int]:
        """Send numbers from one host to another; return those that come, in the order in which they do."""
        with self.listener(target) as (program, port):
            taken = sum(self.link.set_way(source, target).values())
            self.command(source, "send", target, port, str(COUNT))
            # The link has a process of its own, which may not have read them yet.
            wait_until("the link", lambda: sum(self.link.set_way(source, target).values()) >= taken + COUNT)
            self.link.set_way(source, target, loss=0.0, cut=False)
            self.command(source, "end", target, port)
            got: list[int] = json.loads(program.await_line(r'.*"got".*')[0])["got"]
        return got


@pytest.fixture
def make_net() -> Iterator[Callable[..., Net]]:
    """Make hosts that are connected by a link with a seed."""
    with ExitStack() as stack:

        def make(seed: int = 0) -> Net:
            hosts = stack.enter_context(Hosts("a", "b"))
            return Net(hosts, stack.enter_context(Link(hosts, seed)))

        yield make


def test_a_perfect_link_carries_everything_in_order(make_net: Callable[..., Net]) -> None:
    net = make_net()
    assert net.received("a", "b") == list(range(COUNT))
    assert net.link.set_way("a", "b") == {"carried": COUNT + 1, "lost": 0, "cut": 0, "crowded out": 0}


def test_each_direction_takes_the_delay_and_keeps_the_order(make_net: Callable[..., Net]) -> None:
    net = make_net()
    net.link.shape(delay_s=0.05, loss=0.0)
    with net.listener("b") as (_, port):
        assert net.command("a", "echo", "b", port)["echo_s"] >= 0.1
    assert net.received("a", "b") == list(range(COUNT))


def test_what_is_lost_is_about_the_share_asked_for_and_follows_from_the_seed(make_net: Callable[..., Net]) -> None:
    def survivors(seed: int) -> list[int]:
        net = make_net(seed)
        net.link.shape(delay_s=0.0, loss=0.3)
        return net.received("a", "b")

    first, again, other = survivors(1), survivors(1), survivors(2)
    assert first == again != other
    for got in (first, other):
        assert got == sorted(got)
        assert 0.61 <= len(got) / COUNT <= 0.79


def test_a_one_way_cut_lets_the_other_way_through(make_net: Callable[..., Net]) -> None:
    net = make_net()
    net.link.cut("a", "b")
    assert net.received("b", "a") == list(range(COUNT))
    assert net.received("a", "b") == []


def test_an_isolated_host_hears_nothing_and_is_not_heard_until_the_link_is_mended(
    make_net: Callable[..., Net],
) -> None:
    net = make_net()
    net.link.isolate("a")
    for source, target in (("a", "b"), ("b", "a")):
        with net.listener(target) as (program, port):
            net.command(source, "end", target, port)
            wait_until("the packet to be dropped", lambda way=(source, target): net.link.set_way(*way)["cut"] == 1)  # type: ignore[misc]
            net.link.mend()
            net.command(source, "end", target, port)
            assert program.await_line(r'.*"got".*')[0] == '{"got": []}'
        net.link.isolate("a")


def test_the_program_between_the_hosts_ends_with_what_started_it(make_net: Callable[..., Net]) -> None:
    net = make_net()
    switch = net.link._switch
    assert switch is not None
    net.link.__exit__(None, None, None)
    assert switch.returncode == 0
