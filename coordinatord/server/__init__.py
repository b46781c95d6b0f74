"""The shell of the coordinator: sockets, timers and logs around the pure machine in `core`.

Only `driver` calls the machine. `counters` has the counts that are made where something happens. The room `sessions`
has the connections to the port, and `reads` reads from nodes, machine and store for the rooms after it. `http` answers
everybody who is no node, `metrics` shows the counts, and `page` is the live page. `app` puts all of it together on one
port. `standby` serves in its place while another coordinator leads. Nothing here decides about a job.

The driver and the counters come first. Each room imports from those before it in this list, and from no later one.
"""
