"""Kept state: the objects of `ctx.keep` outlive the workers, in memory of their node.

All modules use torch. `workerlib.contract` has the layout of that memory, and the messages about it. `keeper` begins to
keep, and decides when state is saved and by which thread, and `state_lock` which thread has the state. `step_saver`
decides which states are those of a step, and saves them, `generations` and `small_state` write it, `intervals` decides
how often, and `restoring` brings it back. `pending_state` saves small state within a step. `planned_end` receives the
order to end a round, also for a script that keeps nothing, and holds training between two steps before that end.
`process_hooks` has the calls of a keeper. `adapter` says what an object's adapter does; `kept_objects` adapts the kinds
of objects, and `kept_containers` dicts and lists of tensors; `pieces` adapts the shards of tensors, `plain_values`
other values as JSON with the tensors within these, and `random_state` the random numbers. `gate` knows which step a GPU
has come to undisturbed, and holds optimizers back until then. `unkept_state` finds what training depends on and nobody
keeps. `agent_channel` is the connection, `arena_request` requests memory, and `kept_errors` has the errors.
"""
