"""The wing that judges hosts: which of them are charged with failed rounds, and which of them rounds do without.

A host is *charged* with a round that it ended by a fault of its own, such as a broken GPU. If its charges are enough,
it is *quarantined*: rounds do without it if they can. A wing is a part of the core that a run calls by an interface,
which `run_judging` implements here. `judgements` charges hosts, quarantines them and lets them in again; what it
decides becomes records, and the kernel applies them.

Some faults end no round. So a preflight tests nodes without workers in pairs, in several turns. `pair_search` chooses
the pairs of each turn, and finds the nodes that are slow, compute wrong values or have a bad link.
"""
