"""Reads nodes, machine and store, for callers and for background watches.

`stack_reads` samples the stacks of a round's workers, and `arrival_reads` reads their arrivals in collectives.
`rounds_reader` finds the rounds of a live or ended job. `series_sampler` samples jobs for charts over time.
`change_signal` wakes readers when something changes.

The result goes to the driver as an event, or to the caller. So nothing here imports from `http`, `metrics` or `page`.
"""
