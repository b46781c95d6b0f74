"""What a node shows while it is not let in."""

from coordinatord.protocol.messages import RefusalCode, Refused
from nodeclient.core.effects import Notice, Waiting
from nodeclient.core.events import TurnedAway
from tests.support.bench import SETTINGS, Bench


def test_a_node_whose_token_may_become_right_says_how_long_that_takes_at_most() -> None:
    bench = Bench()
    bench.submit(TurnedAway(Refused(RefusalCode.FORBIDDEN, "the token is not known here", retry=True), 4.0))
    assert bench.last(Waiting).until == bench.now + 4.0
    bench.close("Connection refused")
    assert bench.last(Waiting).until == bench.now + SETTINGS.join_timeout_s


def test_reasons_that_are_never_the_same_do_not_fill_a_log() -> None:
    bench = Bench()
    for number in range(1000):
        bench.close(f"error {number}")
    assert bench.count(Notice) + bench.count(Waiting) < 100
