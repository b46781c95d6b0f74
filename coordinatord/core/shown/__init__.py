"""Builds what people are shown of jobs. It reads all of the core, and nothing in the core reads it.

So no decision depends on what is shown, and a text or a figure may change without a thought of that. `job_view` builds
the answers about jobs, `stack_groups` those about workers' stacks, and `time_series` the points of charts.
`log_sources` finds the nodes that have the log files of a round.
"""
