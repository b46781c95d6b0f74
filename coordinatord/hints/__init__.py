"""Explains why training programs fail or hang, and what to do about it. Pure.

* **A failure.** `match` finds the class of its cause, and advice (a *hint*), in the tables of known causes: `launch`,
  `network` and `resource`, whose rows `rule` defines, and `xid` for the errors of GPUs. `early_ends` names workers
  that exited with 0 while another one needed them, and `same_error` counts workers with the same error. `brief_cause`
  names the cause in a few words. `failure_status` combines all of this, and describes other workers of the round.
* **A hang.** `hang_verdict` finds the worker that all others wait for, from the samples in `seen_worker` and the
  `wait_graph`. `hang_sentences` puts that into words, and `hang_place` tells whether its host may be the cause.

Which failure came first is decided in `coordinatord.core`, and `nodeclient.diagnosis` examines the failed worker's
host. Both programs use this package, so a node and the coordinator give the same advice.
"""
