"""The second floor: the state of all jobs.

* `durable` has the durable state. It follows from records, so a restarted daemon has it again. The other modules have
  the live state, which ends with the daemon: nodes report it anew.
* `cluster` has the runs of all jobs, and `run` is one of them.
* The parts of a run: its members (`roll` of `member`s), the nodes that wait for a round (`gathering`), how the workers
  of a round ended (`evidence`), and the interfaces of its three wings (`wings`).
"""
