"""State that workers keep in memory of their node: how it gets there, and how the workers of later rounds get it.

Other rooms call `state_keeper`, which carries out the agent's orders, and `resources` is what all modules share:

- The channel: `worker_channel` has the connections to the workers of this node, and `round_workers` records what those
  of a round report.
- The memory: `round_memory` gives the workers of a round their arenas. `parts` holds the arenas, checks them, and
  transfers what lies in them from node to node.
- The resumption: `restoration` gets what a round resumes from, out of this node, other nodes or the disk.
- The replicas: `copier` gets copies of what other nodes keep, no faster than the user allows.
- The disk: `disk` writes steps beside the training, and reads them back where no memory is left.
"""
