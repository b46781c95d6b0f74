"""The shell of the coordinator: sockets, timers and logs around the pure machine in `core`.

Only `driver` calls the machine. `connections` accepts what comes to the port, and tells sessions and HTTP apart;
`tls_listener` does so over TLS, and `connection_limits` has how many connections of each kind there may be.
`node_sessions` carries nodes' messages to the driver and its answers back, and `paced_effects` spreads many of these
over turns of the loop; `join_pace` bounds how often one may come, `node_reads` asks nodes for their log files and where
their workers stand, `stack_reads` asks that of a whole round, `arrival_reads` asks when its workers came to
collectives, and `refusal_log` keeps lines about refused nodes few. `http` answers everybody else, from jobs that
`job_iteration` reads in pieces; `change_signal` wakes readers when something changes. `rounds_reader` finds the rounds
of a job, also when it is over. `series_sampler` looks at jobs now and then, for charts over time. `counters` counts for
`metrics`, `page` is the live page, and `app` puts all of it together on one port. `revocation` ends what callers may no
longer do. `standby` serves instead of all that while another coordinator leads. Nothing here decides about a job.
"""
