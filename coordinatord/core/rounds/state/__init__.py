"""The second floor: what is known.

`durable` is what outlives the daemon. The other modules hold what one life of the daemon knows beside that. `cluster`
holds the runs, and `run` is one run of a job. Its parts are its members (`roll`, and each is a `member`), their
arrivals for the next round (`gathering`), why a round ends (`evidence`), and the only words by which a run knows its
two wings (`wings`). `lease` says how long a node that is not heard still counts, and `leases` holds when that ends for
each. `sleep_watch` notices that the coordinator itself was asleep.
"""
