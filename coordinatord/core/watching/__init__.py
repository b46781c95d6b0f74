"""The wing that watches workers: it finds those that hang, those that are slower, and those whose state differs.

A look is a sample of every worker of a round at one moment. `run_watch` implements the kernel's interface to this wing:
it decides when to look, and what follows. `hang_watch` pairs the looks at a round that has stalled, `look_comparison`
compares the two of a pair, and `stack_sources` finds the nodes to ask.

`arrivals` decides when to ask workers for the times at which they arrived in collectives, `lateness` compares these
times, and `lateness_watch` decides which node to drain.

`divergence_watch` finds ranks whose state differs from that of others, although it should be the same.
"""
