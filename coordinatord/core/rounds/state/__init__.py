"""The second floor: what is known.

`durable` is what outlives the daemon. The other modules hold what one life of the daemon knows beside that: `cluster`
holds the runs, `run` is one run of a job, `member` one node in it, `wings` are the words by which a run knows its two
wings, and `leases` how long each node that is not heard still counts. `sleep_watch` notices that the coordinator itself
was asleep.
"""
