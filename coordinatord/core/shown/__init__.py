"""What readers are shown of jobs: it may read the kernel and both wings, and neither of them reads it.

`job_view` builds the JSON of a job, `stack_groups` that of where its workers stand. `log_sources` finds the nodes that
have the log files of a round, and `time_series` has what charts show.
"""
