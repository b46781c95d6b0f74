"""A node whose session closed counts as lost at once if the errors of its peers prove it, and only then."""

import pytest
from msgspec.structs import replace

from coordinatord.core.rounds.events import Disconnected, TokensRevoked
from coordinatord.core.rounds.values.records import NodeLost, RoundFormed
from coordinatord.core.situation import situation
from coordinatord.protocol.messages import Ended
from tests.support.script import Stage, play

TRIO = """
    join n1 min=2 max=3 workers=2
    join n2 n3 min=2 max=3
    advance 1s
    running n1 n2 n3
    advance 20s
"""

KILLED = """
    drop n3
    fail n1 of=peer
    stopped n2
    failed n1
"""
"""Node n3 is killed: its session closes, a worker of n1 fails for that, and that of n2 hangs until it is stopped."""


def losses(stage: Stage) -> list[tuple[str, float]]:
    """Return who was lost, and how long after its session had closed."""
    return [(record.node, record.silent_s) for record in stage.records(NodeLost)]


def revoke(stage: Stage, *nodes: str) -> None:
    """Revoke the token of these nodes, whose sessions end then."""
    for node in nodes:
        stage.run.members[node].session.token = node
    stage.coordinator.handle(TokensRevoked(frozenset(nodes)), stage.now)
    for node in nodes:
        stage.coordinator.handle(Disconnected(stage.puppets[node].session), stage.now)


def test_the_failure_may_be_known_first() -> None:
    stage = play(TRIO, "fail n1 of=peer", "stopped n2", "failed n1")
    assert losses(stage) == []
    stage.play("drop n3")
    assert losses(stage) == [("n3", 0.0)]


def test_workers_of_one_node_may_have_lost_the_same_peer() -> None:
    stage = play(TRIO, "drop n3", "fail n1 of=peer follower=same", "stopped n2", "failed n1")
    assert losses(stage) == [("n3", 0.0)]


ALONE = {
    "only its session closed": ["drop n3"],
    "only a peer's worker failed": ["fail n1 of=peer", "stopped n2", "failed n1"],
    "a peer's worker failed by itself": ["drop n3", "fail n1", "stopped n2", "failed n1"],
    "one of two failed by itself": ["drop n3", "fail n1 of=peer", "fail n2", "failed n1 n2"],
    "another worker of that node failed by itself": [
        "drop n3",
        "fail n1 of=peer follower=other",
        "stopped n2",
        "failed n1",
    ],
    "it had said that its own worker failed": ["fail n3 of=peer", "drop n3", "stopped n1 n2"],
    "both had said so": ["fail n1 of=peer", "fail n3 of=peer", "drop n3", "stopped n2", "failed n1"],
    "it had said that it ends its workers": ["fail n1 of=peer", "stopping n3", "drop n3", "stopped n2", "failed n1"],
    "another node may still have workers": ["drop n3", "fail n1 of=peer", "failed n1"],
    "two sessions closed": ["drop n2", "drop n3", "fail n1 of=peer", "failed n1"],
    "the round was stopped on purpose before": ["ask restart default", "drop n3", "fail n1 of=peer", "stopped n1 n2"],
    "the failure was long before": ["fail n1 of=peer", "stopped n2", "advance 2s", "failed n1", "drop n3"],
    "a peer is to leave": ["leave n2", "drop n3", "fail n1 of=peer age=1s", "stopped n2", "failed n1"],
    "a peer came back only after the failure": [
        "drop n3 n2",
        "fail n1 of=peer",
        "advance 0.1s",
        "reconnect n2",
        "stopped n2",
        "failed n1",
    ],
    "a peer has been late": [
        "silence n2",
        "advance 4s",
        "heal n2",
        "drop n3",
        "fail n1 of=peer",
        "stopped n2",
        "failed n1",
    ],
    "its own network is bad": ["silence n3", "advance 4s", "heal n3", *KILLED.strip().splitlines()],
}


@pytest.mark.parametrize("signs", ALONE.values(), ids=ALONE)
def test_less_than_that_is_no_proof(signs: list[str]) -> None:
    stage = play(TRIO, *signs)
    assert losses(stage) == []
    stage.play("advance 0.8s")
    assert losses(stage) == []


def test_a_failure_in_an_older_round_is_no_proof() -> None:
    stage = play(TRIO, "fail n1 of=peer", "stopped n2 n3", "failed n1")
    assert len(stage.records(RoundFormed)) == 2
    stage.play("running n2 n3", "drop n3", "fail n2", "failed n2", "stopped n1")
    assert losses(stage) == []


@pytest.mark.parametrize(("node", "rank"), [("n2", 2), ("n3", 4)], ids=["a peer", "the suspect"])
def test_a_worker_of_another_node_that_had_exited_well_explains_the_failure(node: str, rank: int) -> None:
    stage = play(TRIO)
    stage.puppets[node].observed = replace(stage.puppets[node].observed, ended=(Ended(rank, 0.0),))
    stage.play("advance 2s", *KILLED.strip().splitlines())  # only a heartbeat says so
    assert losses(stage) == []


def test_a_revoked_token_closes_the_session_of_a_node_that_is_well() -> None:
    stage = play(TRIO)
    revoke(stage, "n3")
    stage.play("fail n1 of=peer", "stopped n2", "failed n1")
    assert losses(stage) == []


def test_nodes_that_are_silent_as_their_tokens_were_revoked_are_said_to_be() -> None:
    stage = play(TRIO)
    revoke(stage, *stage.puppets)
    stage.play("advance 10s")
    assert "their access tokens are no longer valid, so give them others" in situation(stage.run, stage.now)
    stage.play("reconnect n1")
    assert "silent" not in situation(stage.run, stage.now)


def test_a_node_that_is_lost_as_its_token_was_revoked_is_said_to_be() -> None:
    stage = play(TRIO)
    revoke(stage, "n3")
    stage.play("advance 10s")
    assert [lost.reason for lost in stage.records(NodeLost)] == ["its access token is no longer valid"]


def test_a_coordinator_that_was_started_again_has_seen_no_session_close() -> None:
    stage = play(TRIO, "fail n1 of=peer", "die 1s", "reconnect n1 n2", "stopped n2", "failed n1")
    assert losses(stage) == []
    stage.play("advance 5s")
    assert losses(stage) == []
