"""Builds what people are shown of jobs. It reads the kernel and its wings, which do not import it.

`job_view` builds the answers about jobs, `stack_groups` those about workers' stacks, and `time_series` the points of
charts. `log_sources` finds the nodes that have the log files of a round.
"""
