"""Why training programs fail or hang, and what to do about it: for a terminal, the page and programs. Pure.

`match` looks for the cause of a failure in the tables of known causes: `launch`, `network` and `resource`, whose rows
are defined in `rule`. `hang_verdict` finds the worker that all others wait for: `seen_worker` is what looks show of
each, `wait_graph` says who waits for whom, and `hang_sentences` has the words. `other_workers` describes the other
events of the round. `failure_status` puts all of this together. `coordinatord.core` decides which failure came first,
and `nodeclient.diagnosis` finds out what the failed worker's host shows.
"""
