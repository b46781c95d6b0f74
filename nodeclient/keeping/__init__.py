"""Training state that workers keep in memory of their node, so that later rounds resume from it.

The state of one rank as of one step is a *part*. It lies in an *arena*, memory of this process that the worker writes,
and so it outlives the worker. No decision is taken here about which steps are kept: the coordinator and the agent order
what to protect, copy, write and resume from.

Other packages call `state_keeper`, which carries out these orders. `resources` has the objects that all modules share.

- The channel: `worker_channel` has the connections to the workers of this node, and `round_workers` their reports.
- The memory: `round_memory` provides the workers of a round with arenas. `parts` owns the arenas, and transfers the
  parts in them from node to node.
- The resumption: `restoration` gets the parts that a round resumes from, from this node, other nodes or the disk.
- The replicas: `copier` gets copies of other nodes' parts, no faster than the user allows.
- The disk: `disk` writes steps in the background, and reads them back when no node has them in memory.
"""
