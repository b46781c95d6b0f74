"""The wing that judges hosts: which of them are charged with failed rounds, and which of them rounds do without.

`run_judging` implements the kernel's interface to this wing. `charging` finds the host that ended a round by a fault of
its own. `judgements` charges hosts, quarantines them and lets them in again; what it decides becomes records, and the
kernel applies them.

A `preflight` tests nodes without workers in pairs, in several turns. `pair_search` chooses the pairs of each turn,
and finds the nodes that are slow, wrong or badly connected.
"""
