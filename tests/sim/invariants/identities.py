"""Invariants of identities: while a node may be heard, the bearer of another token cannot take its place.

Such a claim is refused with the names of both tokens, and has no other effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from coordinatord.core.journal import Decided
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Batch, Refuse
from coordinatord.core.rounds.events import Connected, Event, TokensRevoked
from coordinatord.core.rounds.state.member import Member
from coordinatord.protocol.messages import RefusalCode
from tests.sim.invariants.laws import Facts, Laws

MEMBER_FIELDS = [field.name for field in fields(Member)]

Known = tuple[dict[str, tuple[Any, ...]], dict[int, str]]
"""The fields of each member by node, and the node of each session."""


class IdentityLaws(Laws):
    """Watches the tokens and claims of one world."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._tokens: dict[tuple[str, int], str] = {}
        """The token that each node has shown, by incarnation."""
        self._revoked: set[tuple[str, int]] = set()
        """Nodes whose token was revoked: the records do not name their later token."""
        self.claims = 0
        """How many claims were refused."""

    def note_event(self, event: Event) -> None:
        """Note the token of a node that joins, and a token that is revoked."""
        if isinstance(event, Connected):
            self._tokens[event.join.node, event.join.incarnation] = event.token
        elif isinstance(event, TokensRevoked):
            run = self.world.daemon.machine.jobs.get("job")
            for member in () if run is None else run.members.values():
                if member.session.token in event.tokens:
                    self.revoked(member.node, member.incarnation)

    def revoked(self, node: str, incarnation: int) -> None:
        """Note that the token of a node is no longer valid."""
        self._revoked.add((node, incarnation))
        self._tokens.pop((node, incarnation), None)

    def restored(self, machine: Coordinator, past: Sequence[Decided]) -> None:
        """Note that a coordinator has started, which knows the first token of each node if that is still valid."""
        for known in self._revoked:
            self._tokens.pop(known, None)

    def is_taken(self, node: str, machine: Coordinator) -> bool:
        """Whether a node has shown its token to this coordinator, and may be heard."""
        run = machine.jobs.get("job")
        member = None if run is None else run.members.get(node)
        return member is not None and not member.lease.expired and (node, member.incarnation) in self._tokens

    def known(self, machine: Coordinator) -> Known:
        """Return all that the coordinator knows of nodes."""
        run = machine.jobs.get("job")
        members = {} if run is None else run.members
        known = {node: tuple(getattr(member, name) for name in MEMBER_FIELDS) for node, member in members.items()}
        return known, {number: member.node for number, (_, member) in machine._sessions.items()}

    def judge_claim(self, claim: Connected, before: Known, batch: Batch) -> None:
        """Check the effects of a claim to the identity of a node."""
        node, check = claim.join.node, self.check
        check(not batch.records, "another one claims to be %s, and it follows: %s", node, batch.records)
        refused = [effect for effect in batch.effects if isinstance(effect, Refuse) and effect.session == claim.session]
        check(len(refused) == len(batch.effects) == 1, "another one claims to be %s: %s", node, batch.effects)
        [refuse] = refused
        is_refused = refuse.message.code is RefusalCode.FORBIDDEN and (refuse.job, refuse.node) == (
            claim.join.job,
            node,
        )
        honest = self._tokens[node, self.world.run.members[node].incarnation]
        named = claim.token in refuse.message.message and honest in refuse.message.message
        check(is_refused and named, "a claim to be %s is refused with another reason: %s", node, refuse)
        after = self.known(self.world.daemon.machine)
        check(after == before, "another one claims to be %s, and what is known has changed: %s", node, after)
        self.claims += 1
