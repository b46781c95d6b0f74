"""The second floor: what is known.

`cluster` holds the runs, `run` is one execution of a job, `member` one node in it, and `leases` says for how long each
node that is not heard still counts.
"""
