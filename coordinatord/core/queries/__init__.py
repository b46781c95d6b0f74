"""The third floor: what only reads the state. A query assigns nothing but its own names.

`conditions` says what holds, and from when; `reasons` describes it in words. `desired_state` is what each node is asked
for, `admission` says which nodes are let in, `master_address` where rank 0 listens. `time_attribution` finds where the
open time of a run is cut in two. `handover` says which node stays for what it keeps. `report_builder` builds the report
of a failure, and `job_view` the JSON of a job. `log_sources` finds the nodes that have the log files of a round,
`stack_groups` those to ask where workers stand, and `resumption` the step that a round resumes from. `corroboration`
says which node is proved to be gone. `persistence` says which step is written to the disk, by which nodes, and which
nodes wait for that. `copying` says which copies each node is to get, and `hanging` when workers are looked at that do
no step. `arrivals` says when workers are asked how late they came to collectives, and `start_counts` how those of a
round were begun.
"""
