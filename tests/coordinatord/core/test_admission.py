"""Which nodes are let in, and what the others receive."""

import pytest
from msgspec import structs

from coordinatord.core.rounds.events import Connected
from coordinatord.core.rounds.queries.admission import (
    RefusedError,
    check_incarnation,
    check_room,
    check_spec,
    check_token,
)
from coordinatord.core.rounds.state.member import Member
from coordinatord.protocol.fields import RANKS_MAX
from coordinatord.protocol.messages import JobSpec, Launcher, RefusalCode
from coordinatord.protocol.spec_flags import nnodes
from tests.support.builders import a_join, a_member, a_run, a_spec


def refusal_of_spec(ours: JobSpec, theirs: JobSpec) -> str:
    run = a_run(ours)
    with pytest.raises(RefusedError) as caught:
        check_spec(run, a_join("second", job="mnist", spec=theirs))
    refused = caught.value.refused
    assert refused.code is RefusalCode.SPEC_DIFFERS
    assert not refused.retry
    return refused.message


def test_all_differences_are_named_at_once() -> None:
    text = refusal_of_spec(a_spec(1, 1, max_restarts=0), a_spec(1, RANKS_MAX, max_restarts=3))
    assert "--nnodes is 1: on this node (second), but 1 on first" in text
    assert "--max-restarts is 3 on this node (second), but 0 on first" in text


def test_a_job_of_torchrun_and_nodeclient_both_is_refused_by_what_started_each() -> None:
    text = refusal_of_spec(a_spec(), structs.replace(a_spec(1, 9, 7), launcher=Launcher.TORCHRUN))
    assert text == (
        "job mnist: this node (second) is started by torchrun, but first, which was first, by nodeclient:"
        " start all nodes in the same way, or give one of the two another job id"
    )


@pytest.mark.parametrize(
    ("spec", "text"), [(a_spec(3, 3), "3"), (a_spec(1, 4), "1:4"), (a_spec(2, RANKS_MAX), "2:"), (a_spec(1, 1), "1")]
)
def test_a_range_of_nodes_is_written_as_the_flag_has_it(spec: JobSpec, text: str) -> None:
    assert nnodes(spec) == text


def test_a_full_coordinator_refuses_for_now() -> None:
    check_room(9, 10)
    with pytest.raises(RefusedError, match="already has 10 nodes, its limit") as caught:
        check_room(10, 10)
    assert caught.value.refused.retry
    assert caught.value.refused.code is RefusalCode.LIMIT


@pytest.mark.parametrize("session", [1, None])
def test_what_a_process_sent_before_its_last_join_comes_too_late(session: int | None) -> None:
    known = a_member("n1")
    known.session.id, known.session.join = session, a_join("n1", age_s=7.0)
    for age_s in (7.0, 8.0, None):
        check_incarnation(known, a_join("n1", age_s=age_s))
    check_incarnation(known, a_join("n1", incarnation=2, age_s=0.1))
    with pytest.raises(RefusedError, match="node n1 joined job default once more since it sent this") as caught:
        check_incarnation(known, a_join("n1", age_s=6.9))
    assert caught.value.refused.retry


@pytest.mark.parametrize(("session", "expired"), [(None, False), (1, True)])
def test_one_that_cannot_be_heard_has_no_claim(session: int | None, expired: bool) -> None:
    known = a_member("n1")
    known.session.id, known.lease.expired = session, expired
    check_incarnation(known, a_join("n1", incarnation=0))


def a_claim(incarnation: int = 1, token: str = "stranger") -> Connected:  # noqa: S107 - a name, and no secret
    return Connected(9, a_join("n1", job="mnist", incarnation=incarnation), "10.0.0.66", "10.0.0.9", token)


def a_bearer() -> Member:
    member = a_member("n1")
    member.session.token = "nodes"  # noqa: S105 - a name, and no secret
    return member


@pytest.mark.parametrize("incarnation", [0, 1, 2])
@pytest.mark.parametrize("session", [1, None])
def test_the_identity_of_a_node_that_may_be_heard_is_refused_to_another_tokens_bearer(
    incarnation: int, session: int | None
) -> None:
    known = a_bearer()
    known.session.id = session
    with pytest.raises(RefusedError) as caught:
        check_token(known, a_claim(incarnation))
    refused = caught.value.refused
    assert (refused.code, refused.retry) == (RefusalCode.FORBIDDEN, True)
    assert refused.message == (
        "node n1 of job mnist is here already, from 10.0.0.1, with the token nodes; this one has the token stranger:"
        " if it is the same node, revoke its old token (coordinatord token revoke nodes), else give each node its own"
        " --node-id"
    )


def test_an_identity_is_free_for_its_own_token_for_any_token_after_the_lease_and_where_none_is_known() -> None:
    check_token(None, a_claim())
    check_token(a_bearer(), a_claim(token="nodes"))  # noqa: S106 - a name, and no secret
    check_token(a_member("n1"), a_claim())
    silent = a_bearer()
    silent.lease.expired = True
    check_token(silent, a_claim())
