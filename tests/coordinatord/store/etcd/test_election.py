"""What one coordinator concludes about who leads."""

import pytest

from coordinatord.store.etcd.election import RETRY_S, Election

LEASE_S = 6.0


@pytest.fixture
def election() -> Election:
    """Make one with a lease of its own, number 7, which was asked for at 100 s."""
    election = Election(LEASE_S)
    election.record_lease(7, LEASE_S, 100.0, 100.1)
    return election


def test_a_term_is_counted_from_when_its_renewal_was_sent(election: Election) -> None:
    assert election.may_act(105.9)
    assert not election.may_act(106.0)
    election.record_renewal(103.0, 103.1, LEASE_S)
    assert election.may_act(108.9)
    election.record_renewal(101.0, 103.2, LEASE_S)
    assert (election.term_ends_at, election.may_act(109.0)) == (109.0, False)


def test_it_leads_by_a_key_that_goes_with_its_own_lease(election: Election) -> None:
    assert not election.record_attempt(created_at=40, lease=3)
    assert election.fence == 0
    assert not election.leader_is_gone(40)
    assert election.leader_is_gone(None)
    assert election.leader_is_gone(41)
    assert election.record_attempt(created_at=42, lease=7)
    assert election.fence == 42
    assert election.leader_is_gone(43)


def test_renewals_follow_each_other_thrice_in_a_lease_and_sooner_where_etcd_is_silent(election: Election) -> None:
    assert election.record_renewal(102.0, 102.1, LEASE_S) == LEASE_S / 3
    assert election.term_ends_at == 108.0
    assert election.record_renewal(104.0, 105.0, None) == RETRY_S
    assert election.record_renewal(107.0, 107.8, None) == pytest.approx(0.2)
    assert election.may_act(107.9)


@pytest.mark.parametrize(("now", "left_s"), [(101.0, 0.0), (106.0, None), (112.0, LEASE_S)])
def test_it_leads_no_more_if_etcd_says_so_or_has_not_said_otherwise_in_time(
    election: Election, now: float, left_s: float | None
) -> None:
    assert election.record_renewal(100.0, now, left_s) is None


def test_a_renewal_that_was_on_its_way_begins_no_ended_term_again(election: Election) -> None:
    election.end()
    assert election.record_renewal(101.0, 101.1, LEASE_S) is None
    assert not election.may_act(101.1)


def test_a_lease_that_is_too_short_for_a_slow_etcd_is_to_be_raised() -> None:
    election = Election(5.0)
    election.record_lease(7, 5.0, 100.0, 100.4)
    election.record_renewal(100.0, 100.5, 5.0)
    election.record_renewal(101.0, 104.9, None)
    assert election.remedy(105.0) == "", "it answers fast, or not at all"
    election.record_renewal(102.0, 106.8, 5.0)
    election.record_renewal(107.0, 107.1, 5.0)
    assert election.remedy(112.0) == "etcd took 4.8 s; with --lease 5 this goes on: raise --lease to 50"
    slow_from_the_start = Election(5.0)
    slow_from_the_start.record_lease(7, 5.0, 100.0, 101.2)
    assert slow_from_the_start.remedy(105.0).startswith(
        "etcd took 1.2 s; with --lease 5 this goes on: raise --lease to"
    )


def test_a_lease_that_has_not_expired_is_not_to_be_raised() -> None:
    election = Election(5.0)
    election.record_lease(7, 5.0, 100.0, 101.2)
    assert election.remedy(102.0) == "", "the lease lasts: etcd was set back, say, or the leader is cut off from nodes"
    election.end()
    assert election.remedy(106.0) == "", "it has stepped down"


def test_a_lease_that_is_over_by_itself_is_not_revoked(election: Election) -> None:
    assert election.resign(103.0) == 7
    assert (election.lease, election.may_act(103.0)) == (0, False)
    election.record_lease(8, LEASE_S, 110.0, 110.1)
    assert election.resign(116.0) == 0
