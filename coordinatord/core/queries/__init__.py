"""The third floor: what only reads the state. A query assigns nothing but its own names.

`conditions` says what holds, and since or from when; `reasons` puts it into words. `desired_state` is what each node is
asked for, `admission` says who is let in, `master_address` where rank 0 listens. `time_attribution` finds where the
open time of a run is cut in two. `handover` says who stays for what it keeps, `halting` which step workers keep before
a planned end. `report_builder` builds the report of a failure, `job_view` and `kept_view` the JSON of a job, and
`samples` what its charts are made of. `log_sources` finds who has the log files of a round, `stack_groups` whom to ask
where workers stand, and `resumption` the step that a round resumes from. `corroboration` says which node is proved to
be gone. `scale_up_wait` says what nodes wait for that arrive while a round goes on. `persistence` says which step is
written to the disk, by whom, and who waits for that. `copying` says which copies each node is to get, and `hanging`
when workers are looked at that do no step. `arrivals` says when workers are asked how late they came to collectives,
and `start_counts` how those of a round were begun. `reach` says whether this coordinator is cut off from its nodes.
"""
