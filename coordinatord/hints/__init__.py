"""Explains why training programs fail or hang, and what to do about it. Pure.

`match` looks up the cause of a failure in the tables of known causes: `launch`, `network` and `resource`, whose rows
are defined in `rule`. `hang_verdict` finds the worker that all others wait for, from the samples in `seen_worker` and
the `wait_graph`, and `hang_sentences` has the words. `other_workers` describes the other events of the round.
`failure_status` combines all of this. `coordinatord.core` decides which failure came first, and
`nodeclient.diagnosis` examines the failed worker's host.
"""
