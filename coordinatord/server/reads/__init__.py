"""Reads data from nodes, from the machine (the state in memory) and from the store.

For the HTTP API, `rounds_reader` finds the rounds of a live or ended job, `series_sampler` samples jobs for charts over
time, and `change_signal` wakes readers when something changes. In the background, `arrival_reads` reads when workers
arrived in collectives. `stack_reads` reads where workers are in their code, for the API and for the machine.

The result of a read in the background goes to the driver as an event. Nothing here imports from `http`, `metrics` or
`page`.
"""
