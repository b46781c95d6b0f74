"""Reads nodes, machine and store for callers, and watches jobs, beside the messages of sessions.

`stack_reads` asks the nodes of a round where their workers stand, and `arrival_reads` when workers came to collectives.
`rounds_reader` finds the rounds of a job, also when it is over. `series_sampler` looks at jobs now and then, for charts
over time. `change_signal` wakes readers when something changes.

The result goes to the driver as an event, or to the caller. So nothing here imports from `http`, `metrics` or `page`.
"""
