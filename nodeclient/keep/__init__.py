"""State that workers keep in memory of their node: it outlives them, and other nodes can have it.

`arenas` owns the memory, and `digests` shows whether it is still what it was. `worker_channel` talks to the workers of
this node. `part_server` gives parts to other agents and `part_fetch` gets them, in the words of `part_messages`.
`landing` is the memory of a part that comes in; `restoration` puts together what the workers of a round resume from,
and `resuming` hands it to them. `copier` gets copies of what other nodes keep, as fast as `rate_limit` lets it.
`round_workers` is what the workers of a round have said. `state_keeper` is the door, and `means` is what all of them
work with.
"""
