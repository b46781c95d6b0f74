"""What is read for others, beside the messages of sessions: from nodes, from the machine, and from the store.

`stack_reads` asks the nodes of a round where their workers stand, and `arrival_reads` asks when these came to
collectives. `job_iteration` reads all jobs in pieces. `rounds_reader` finds the rounds of a job, also when it is over.
`series_sampler` looks at jobs now and then, for charts over time. `change_signal` wakes readers when something changes.

What is found goes to the driver as an event, or to whoever asked. So nothing here imports from `http`, `metrics` or
`page`.
"""
