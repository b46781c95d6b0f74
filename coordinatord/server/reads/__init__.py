"""Reads data from nodes, machine and store, for the HTTP API and in the background.

`stack_reads` reads the stacks of a round's workers, and `arrival_reads` their arrivals in collectives. `rounds_reader`
finds the rounds of a live or ended job. `series_sampler` samples jobs for charts over time. `change_signal` wakes
readers when something changes.

Results go to the driver as events, or to the caller. Nothing here imports from `http`, `metrics` or `page`.
"""
