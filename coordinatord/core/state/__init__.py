"""The second floor: what is known.

`durable` is what outlives the daemon. What one life of it knows beside that: `cluster` holds the runs, `run` is one
execution of a job, `member` one node in it, and `leases` says for how long each node that is not heard still counts.
"""
