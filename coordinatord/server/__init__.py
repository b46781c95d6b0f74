"""The shell of the coordinator: sockets, timers and logs around the pure machine in `core`.

Only `driver` calls the machine. `paced_effects` spreads many of its effects over turns of the loop, and `counters` has
the counts that are made where something happens. The room `sessions` has what comes to the port.

`stack_reads` asks the nodes of a round where their workers stand, and `arrival_reads` asks when these came to
collectives. `http` answers everybody else, from jobs that `job_iteration` reads in pieces; `change_signal` wakes
readers when something changes. `rounds_reader` finds the rounds of a job, also when it is over. `series_sampler` looks
at jobs now and then, for charts over time. `metrics` shows the counts, and `page` is the live page.

`app` puts all of it together on one port. `standby` serves instead of all that while another coordinator leads. Nothing
here decides about a job.
"""
