"""The second floor: what is known.

`durable` is what outlives the daemon. The other modules hold what one life of the daemon knows beside that: `cluster`
holds the runs, `run` is one run of a job, `member` one node in it, `kept_index` has what the nodes of a run keep, and
`leases` how long each node that is not heard still counts. `persisting` has what is being written to the disk.
`watches` has the looks at workers, the checkpoints of a round, and whether the coordinator itself was asleep.
"""
