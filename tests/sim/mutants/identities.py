"""Mistakes about who is who: another token's bearer is taken for a node that lives, or does it harm."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant

ADMISSION = "coordinatord.core.queries.admission"

CHECK = "if known is None or not known.token or known.token == event.token or known.expired:"

MUTANTS = (
    Mutant(
        "stolen-identity",
        ADMISSION,
        "whoever has any token may claim to be any node",
        CHECK,
        "if known is None or known.node:",
    ),
    Mutant(
        "identity-by-incarnation-alone",
        ADMISSION,
        "another token's bearer is let in if it says that it began later",
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
        "token-not-noted",
        "coordinatord.core.transitions.observations",
        "it is forgotten with which token a node came",
        "    member.token = event.token\n",
        "",
    ),
    Mutant(
        "identity-forgotten-by-a-restart",
        "coordinatord.core.machine",
        "after a restart of the coordinator a node's identity is anybody's until it is back",
        '                member.token = member.durable.token if member.durable.token in tokens else ""\n',
        "",
    ),
    Mutant(
        "revoked-token-outlives-a-restart",
        "coordinatord.core.machine",
        "a node whose token was revoked while the coordinator was away is kept out with its next one",
        "member.token = member.durable.token if member.durable.token in tokens else",
        "member.token = member.durable.token or",
        "coincident_world",
    ),
    Mutant(
        "revoked-token-keeps-the-name",
        "coordinatord.core.machine",
        "a node whose token was revoked is kept out with its next one",
        '        member.token = "" if event.revoked else member.token\n',
        "",
        "coincident_world",
    ),
)
