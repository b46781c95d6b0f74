"""The fourth floor: all code that changes the state.

* `table` lists which state of a run follows which, and when; `actions` has what its rows do.
* `decision` collects what follows from an event. `apply` applies a record to the durable state; then the live state
  follows (`Cluster.follow`).
* `observations` records what nodes report. `releases` releases nodes that are to leave or have waited for too long.
"""
