"""State that workers keep in memory of their node: how it gets there, and how the workers of later rounds get it.

`parts` is the memory of this state and its way from node to node, and `disk` writes it to a disk. Other rooms call
`state_keeper`, and `resources` is what all modules work with. `worker_channel` has the connections to
the workers of this node, and `round_workers` what those of a round have reported, and which memory they have.
`restoration` gets the parts that the workers of a round resume from, out of this node, other nodes or the disk;
`resuming` sends them to the workers. `copier` gets copies of what other nodes keep, no faster than the user allows.
"""
