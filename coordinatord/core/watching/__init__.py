"""The wing that looks at workers: which one holds up the others, and which one is late.

`run_watch` is what the kernel knows of it: it says when to look at the workers of a round that does no step, and what
follows. `stack_sources` says which nodes to ask. `hang_watch` has the looks at one stall, and `look_comparison`
compares two of them. `arrivals` says when workers are asked how late they came to collectives, `lateness` compares the
answers, and `lateness_watch` keeps what they have shown.
"""
