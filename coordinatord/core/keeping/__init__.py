"""The wing for training state that outlives workers: which step is whole, who keeps it, and from where it is resumed.

`kept_index` has what the nodes of a run keep, `shards` says whether parts make a step whole, and `resumption` chooses
the step that a round resumes from; `resume_plan` says which node gets which parts from which other one. `copying` says
which copies each node is to get, by a `copy_plan`, and `handover` which node stays for what it keeps. `persisting` has
what is being written to the disk, and `persistence` says which step is written, by which nodes, and which nodes wait
for that. `checkpoint_watch` has the checkpoints that the script itself writes.
"""
