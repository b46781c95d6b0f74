"""The wing for training state that outlives workers: which step is whole, who keeps it, and from where it is resumed.

`run_keeping` has the words by which the kernel knows the wing, and `table` what it does by itself; `known` is what it
knows of one run. `holdings` takes in what nodes report, and `sentences` has what is said to people.

`kept_index` has what the nodes of a run keep, and `shards` says whether parts make a step whole. `protection` is the
agreement on the steps that nodes must not overwrite. `resumption` chooses the step that a round resumes from, and
`resume_plan` says which node gets which parts from which other one; `first_states` says whether all ranks began alike.
`copying` says which copies each node is to get, by a `copy_plan`; `copy_plans` has those of all protected steps.
`handover` says which node stays to hand over what it keeps.
`persisting` has what is being written to the disk, and `persistence` says which step is written, by which nodes, and
which nodes wait for that. `halting` names the step that all workers keep before a planned end, and `checkpoint_watch`
has the checkpoints that the script itself writes.
"""
