"""State that workers keep in memory of their node: what the workers of a round say of it, and what the next ones get.

`state_keeper` is called by other rooms, and `resources` is what all of them work with. `worker_channel` talks to the
workers of this node, and `round_workers` is what those of a round have said. `restoration` puts together what the
workers of a round resume from, out of `parts` of this node, of other nodes and of the disk; `resuming` hands it to
them. `copier` gets copies of what other nodes keep, as fast as `rate_limit` lets it.
"""
