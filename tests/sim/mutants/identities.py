"""Mistakes about identities: the bearer of another token takes the place of a live node, or harms it."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant

ADMISSION = "coordinatord.core.queries.admission"

CHECK = 'if known is None or known.expired or known.revoked or known.token in {"", event.token}:'

MUTANTS = (
    Mutant(
        "stolen-identity",
        ADMISSION,
        "a bearer of any token may claim to be any node",
        CHECK,
        "if known is None or known.node:",
    ),
    Mutant(
        "identity-by-incarnation-alone",
        ADMISSION,
        "the bearer of another token is let in if it claims that it began later",
        CHECK,
        CHECK.replace(":", " or event.join.incarnation > known.incarnation:"),
    ),
    Mutant(
        "identity-of-the-connected-alone",
        ADMISSION,
        "a node loses its identity while it reconnects",
        CHECK,
        CHECK.replace("known.expired", "known.session is None"),
    ),
    Mutant(
        "refusal-drops-the-honest",
        "coordinatord.core.machine",
        "the session of a node ends when another one claims its identity",
        "            decision.endings.append(Refuse(event.session, error.refused, join.job, join.node))\n",
        "            decision.endings.append(Refuse(event.session, error.refused, join.job, join.node))\n"
        "            decision.close(self.jobs[join.job].members[join.node])\n",
    ),
    Mutant(
        "new-token-not-noted",
        "coordinatord.core.transitions.observations",
        "a node that has come with its next token is kept out when it comes once more",
        "    member.token, member.revoked = event.token, False\n",
        "    member.revoked = False\n",
        "coincident_world",
    ),
    Mutant(
        "revoked-for-good",
        "coordinatord.core.transitions.observations",
        "anybody may claim the identity of a node whose last token was revoked",
        "    member.token, member.revoked = event.token, False\n",
        "    member.token = event.token\n",
        "coincident_world",
    ),
    Mutant(
        "identity-forgotten-by-a-restart",
        "coordinatord.core.state.member",
        "after a restart of the coordinator anybody may claim a node's identity until the node is back",
        "durable.peer_address, durable.local_address, durable.token\n",
        'durable.peer_address, durable.local_address, ""\n',
    ),
    Mutant(
        "revoked-token-outlives-a-restart",
        "coordinatord.core.machine",
        "a node whose token was revoked while the coordinator was away is kept out with its next one",
        "member.revoked = bool(member.token) and member.token not in tokens",
        "member.revoked = False",
        "coincident_world",
    ),
    Mutant(
        "revoked-token-keeps-the-name",
        "coordinatord.core.machine",
        "a node whose token was revoked is kept out with its next one",
        "member.revoked = event.revoked",
        "member.revoked = False",
        "coincident_world",
    ),
)
