"""The wing that watches workers: it finds those that hang, those that are slower, and those whose state differs.

A wing is a part of the core that a run calls by an interface, which `run_watch` implements here. This one ends no
round: it says what it has found, and the kernel decides.

* **Hangs.** A *look* is a sample of every worker of a round at one moment: its collective, and where it is in the code.
  Two looks at a round that makes no progress show a hang. `run_watch` decides when to look, `hang_watch` pairs the
  looks, and `look_comparison` compares a pair. `worker_sources` finds the nodes to ask, also for arrivals, and
  the ranks that each is asked about.
* **Laggards.** `arrivals` decides when to ask workers at what times they arrived in their last collectives, `lateness`
  compares these times, and `lateness_watch` decides which node to drain.
* **Divergence.** `divergence_watch` finds ranks whose state differs from that of others, although it should be equal.
"""
