"""Whether a coordinator takes itself for cut off: where nobody is heard, and nobody has said goodbye."""

from coordinatord.core.rounds.state.cluster import is_cut_off
from coordinatord.protocol.messages import Phase
from tests.coordinatord.core.test_restore import HERE, Life, a_running_pair

SILENT_S = 20.0
"""Longer than any lease."""


def cut_off(life: Life) -> bool:
    return is_cut_off(life.coordinator.cluster)


def test_it_is_once_the_last_node_has_been_silent_for_its_lease() -> None:
    life = a_running_pair()
    life.tick_until(life.now + 1.0)
    life.report(2, **HERE, beat=True)
    life.tick_until(life.now + 4.5)
    assert [member.lease.expired for member in life.run.members.values()] == [True, False]
    assert not cut_off(life)
    life.tick_until(life.now + SILENT_S)
    assert cut_off(life)
    life.report(1, **HERE, beat=True)
    assert not cut_off(life)


def test_it_is_not_where_the_connections_of_all_nodes_are_closed() -> None:
    life = a_running_pair()
    for number in (1, 2):
        life.drop(number)
    life.tick_until(life.now + SILENT_S)
    assert life.run.roll.all_silent
    assert not cut_off(life)


def test_it_is_not_where_nodes_of_before_have_never_come() -> None:
    life = a_running_pair().next_life()
    assert not cut_off(life)
    life.tick_until(life.now + SILENT_S)
    assert life.run.roll.all_silent
    assert not cut_off(life)


def test_it_is_not_without_nodes_or_where_all_of_them_have_left() -> None:
    assert not cut_off(Life())
    life = a_running_pair()
    life.stop()
    for number in (1, 2):
        life.report(number, **HERE | {"phase": Phase.STOPPED})
        life.drop(number)
    life.tick_until(life.now + SILENT_S)
    assert not cut_off(life)
