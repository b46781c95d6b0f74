"""Kept state: what `ctx.keep` was given outlives the workers, in memory of their node.

Three modules are the contract of workers and nodeclient, and of the standard library alone: `arena` is the layout of
that memory, `manifest` says where tensors lie in it, and `channel_messages` what the two say to each other about it.
The others are loaded by who uses them, and use torch: `keeping` begins to keep, `keeper` says when state is saved and
by which thread, `step_saver` saves it, `generations` and `small_state` write it, `intervals` says how often, and
`restoring` brings it back. `step_numbers` says which states are those of a step, `step_commits` how they are named, and
`pending_state` what is kept of a step that is on. `planned_end` hears of the end of a round, also for a script that
keeps nothing, and `standstill` holds training between two steps before it. `process_hooks` is where a keeper is called
from, and `state_lock` says which thread has the state. `kept_objects` knows the kinds of objects, `pieces` the shards
of tensors, `device_order` how far a GPU is, `plain_values` what else there is as JSON, `random_state` the random
numbers. `agent_channel` is the connection, `arena_request` asks for memory, `kept_errors` has the errors.
`checkpoint_parts` numbers what ranks save by `torch.distributed.checkpoint`.
"""
