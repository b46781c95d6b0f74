"""The waits of a node that is not let in."""

from coordinatord.protocol.messages import RefusalCode, Refused
from nodeclient.core.effects import Waiting
from nodeclient.core.events import TurnedAway
from tests.support.bench import SETTINGS, Bench


def test_a_node_whose_token_may_become_right_says_how_long_that_takes_at_most() -> None:
    bench = Bench()
    bench.submit(TurnedAway(Refused(RefusalCode.FORBIDDEN, "the token is not known here", retry=True), 4.0))
    assert bench.last(Waiting).until == bench.now + 4.0
    bench.close("Connection refused")
    assert bench.last(Waiting).until == bench.now + SETTINGS.join_timeout_s
