"""The second floor: what is known.

`durable` is what outlives the daemon. The other modules hold what one life of the daemon knows beside that: `cluster`
holds the runs, `run` is one run of a job, `member` one node in it, `kept_index` has what the nodes of a run keep,
`checkpoint_watch` which checkpoint they have written, `halt_promises` which step workers keep before a planned end, and
`leases` how long each node that is not heard still counts. `persisting` has what is being written to the disk, and
`hang_watch` the looks at workers that do no step. `lateness_watch` has which worker comes last to collectives.
`stall_watch` notices when the coordinator itself was asleep.
"""
