"""The wing for kept state: training state that outlives its workers, in the memory of nodes and on a disk.

A wing is a part of the core that a run calls by an interface. This one only decides: nodes hold the state, and report
their *parts* of it. A part is what one rank keeps of one step. Its big state (weights, the optimizer's state) is one of
several *shards*, and a step is *whole* when each shard has a holder. A node's `keeper` says how others fetch its parts.

`run_keeping` implements the interface, and `table` has the actions that the wing begins itself. `known` joins the state
of the wing for one run, and knows whether all ranks began with the same state. `holdings` records what nodes report,
and `sentences` has the texts for people.

In memory: `kept_index` knows the parts that each node has, and `shards` decides whether parts make a step whole.
`protection` is the agreement on the steps that nodes must not overwrite. `resume_choice` chooses the step that a round
resumes from, and `resume_plan` finds the parts that each node needs for that; `bad_steps` says which steps are known to
be wrong. `copy_plan` plans copies of the state that only one host has, and `copy_orders` asks nodes to fetch them.
`handover` decides which departing nodes stay until others have their state.

On a disk: `write_progress` knows which steps nodes find there, and how far the write of the next one is. `disk_steps`
tells which of the steps are of use, and `write_plan` decides which step is written, when and by which nodes.

At the end of a round: `halting` chooses the step that all workers keep, and `checkpoint_watch` tracks the checkpoints
that the script writes itself.
"""
