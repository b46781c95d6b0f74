"""The shell of the coordinator: sockets, timers and logs around the pure machine in `core`.

`driver` calls the machine, and `counters` counts messages and commits. `sessions` has the connections to the port.
`reads` reads data from nodes, machine and store. `http` serves the HTTP API, `metrics` the metrics for Prometheus, and
`page` the live page. `app` joins all of these on one port, and `standby` replaces `app` while another coordinator
leads. Nothing here decides about a job.

Each package imports only from those before it in this list.
"""
