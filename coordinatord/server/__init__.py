"""The shell of the coordinator: sockets, timers and logs around the pure machine in `core`.

Only `driver` calls the machine. `paced_effects` spreads many of its effects over turns of the loop, and `counters` has
the counts that are made where something happens. The room `sessions` has what comes to the port, and `reads` has what
is asked of nodes, machine and store for others. `http` answers everybody who is no node, `metrics` shows the counts,
and `page` is the live page. `app` puts all of it together on one port. `standby` serves instead of all that while
another coordinator leads. Nothing here decides about a job.

Each room imports from those before it in this list, and never from a later one.
"""
