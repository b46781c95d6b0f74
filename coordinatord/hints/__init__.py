"""Explains why training programs fail or hang, and what to do about it. Pure.

`match` finds the class of a failure's cause and advice about it in the tables of known reasons: `launch`, `network` and
`resource`, whose rows are defined in `rule`, and `xid` for the errors of GPUs. `hang_verdict` finds the worker that all
others wait for, from the samples in `seen_worker` and the `wait_graph`, `hang_sentences` has the words, and
`hang_place` tells whether its host may be why. `early_ends` names workers for lack of which another one failed.
`failure_status` combines all of this, and describes the other workers of the round. `coordinatord.core`
decides which failure came first, and `nodeclient.diagnosis` examines the failed worker's host.
"""
