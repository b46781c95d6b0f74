"""How often a node may join, by a clock of the test's own and at a real server."""

import pytest

from coordinatord.protocol.messages import Desired, Goal, RefusalCode, Refused
from coordinatord.server.sessions import node_sessions
from coordinatord.server.sessions.node_sessions import JOINS_AT_ONCE, JOINS_PER_S, JoinThrottle
from tests.coordinatord.server.conftest import Start
from tests.support.raw_session import connect, join

HONEST, OTHER = ("token", "job", "a"), ("token", "job", "b")


def test_so_many_are_let_in_at_once_and_so_many_each_second() -> None:
    throttle = JoinThrottle()
    assert [throttle.allows(HONEST, 0.0) for _ in range(JOINS_AT_ONCE + 1)] == [True] * JOINS_AT_ONCE + [False]
    later = 3 / JOINS_PER_S
    assert [throttle.allows(HONEST, later) for _ in range(4)] == [True] * 3 + [False]
    assert [throttle.allows(HONEST, 1e6) for _ in range(JOINS_AT_ONCE + 1)] == [True] * JOINS_AT_ONCE + [False]


def test_what_one_uses_up_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_sessions, "JOINERS_MAX", 2)
    throttle = JoinThrottle()
    while throttle.allows(HONEST, 0.0):
        pass
    for other in (OTHER, ("another token", "job", "a"), ("token", "another job", "a")):
        assert throttle.allows(other, 0.0)
    assert len(throttle._remaining) == 2


async def test_a_node_that_comes_without_end_is_refused_for_now_and_others_are_not(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_sessions, "JOINS_AT_ONCE", 3)
    monkeypatch.setattr(node_sessions, "JOINS_PER_S", 0.0)
    async with start() as server:
        for _ in range(3):
            async with connect(server.url, join("a", nodes=2)) as node:
                await node.receive_goal(Goal.WAIT)
        before = server.driver.machine.jobs["job"].revision
        async with connect(server.url, join("a", nodes=2)) as node:
            said = await node.receive(Refused)
            assert (said.code, said.retry) == (RefusalCode.LIMIT, True)
            assert said.message.startswith("node a joins more often than 0 times a second")
        assert server.driver.machine.jobs["job"].revision <= before + 1, "only its last connection has ended since"
        async with connect(server.url, join("b", nodes=2)) as other:
            await other.receive(Desired)
