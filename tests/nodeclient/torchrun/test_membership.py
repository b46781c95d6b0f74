"""What torchrun's thread gets of a round, in whichever order the two threads come to it."""

import pytest

from coordinatord.protocol.messages import JobSpec
from nodeclient.core.effects import Start
from nodeclient.torchrun.membership import Membership
from nodeclient.torchrun.parameters import TorchrunConfig
from tests.support.builders import an_assignment

pytestmark = pytest.mark.slow


def test_a_round_that_is_formed_before_torchrun_asks_for_one_is_not_lost() -> None:
    membership = Membership(TorchrunConfig((), "job", "node", JobSpec(1, 1, 0), None, 60.0, ""))
    start = Start("r-1", 1, an_assignment(), "formed of node a")
    membership.begin_round(start)
    assert membership.await_round() is start
