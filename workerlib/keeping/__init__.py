"""Kept state: the objects of `ctx.keep` outlive the workers, in memory of their node.

`keeper` begins to keep, and decides when state is saved and by which thread, and `state_lock` which thread has the
state. `step_saver` decides which states are those of a step, and saves them, `generations` and `small_state` write it,
`intervals` decides how often, and `restoring` brings it back. `planned_end` receives the order to end a round, also for
a script that keeps nothing, and holds training between two steps before that end. `checkpoints` decides when a script
writes a checkpoint of its own. `process_hooks` calls a keeper. `adapter` says what an object's adapter does;
`kept_objects` adapts the kinds of objects, and `kept_containers` dicts and lists of tensors; `pieces` adapts the shards
of tensors, `plain_values` other values as JSON with the tensors within these, and `random_state` the random numbers.
`gate` knows which step a GPU has come to undisturbed, and holds optimizers back until then. `unkept_state` finds what
training depends on and nobody keeps. `kept_storage` takes the place of a disk under `torch.distributed.checkpoint`.
`agent_channel` is the connection, `arena_request` requests memory, and `kept_errors` has the errors.
`workerlib.contract` has the layout of the memory, and the messages about it.

In the user's process, the import does nothing. `ctx.keep` does all of this where nodeclient offers memory:

* It connects to nodeclient by one Unix socket, and starts the thread `workerlib-keep`, which reads from it. At the
  break of a round this thread copies the state, if training is between two steps. A timer thread maps the pages of new
  memory once.
* It maps shared memory of nodeclient: one file for each arena. A state that has outgrown its arena gets another one.
* It registers a pre-hook of torch for the steps of all optimizers, which also puts a call behind a closure. It
  registers a forward hook on each module, unless no other rank has the same state. They are removed when training ends.
* With a GPU, the first step of an optimizer in each step of training waits until the GPU has passed all collectives.
  Copies have a stream of their own.
* `ctx.step` copies the small state, and stands still when a round is about to end. It may raise `LeftRoundError` in a
  process that is used again.
* It registers one function with atexit, to save at the end of Python, and one for forked children, to close the
  connection in them. Neither can be undone, and both do nothing after training. `KeptStateError` may register another
  function with atexit, which has the error file say that no restart helps.
* It changes the given objects only to bring kept state back, and reshards modules of `fully_shard`. Nothing is patched.
* If a process group has failed and nodeclient does not notice, it saves and ends the process by `os._exit`.

`should_checkpoint`, `checkpointed`, `KeptWriter` and `KeptReader` connect in the same way, with the same thread and a
function for forked children but no hooks on optimizers and modules. Without nodeclient's channel,
`should_checkpoint` handles signals as `should_stop` does. `KeptWriter` and `KeptReader` add a few types of Python and
numpy to those that torch takes for safe in a pickle.

Where nodeclient offers this memory, `init` sets three variables of torch's NCCL, so that torch does not end the process
when a collective fails. A value of the user's stays.

A script that calls none of these has none of this. To switch it off in a script as it is, start nodeclient with
`--keep-memory 0`: then `ctx.keep` only checks the objects and returns -1, a save of `KeptWriter` is left out with a
warning, and `should_checkpoint` is a collective as under torchrun.
"""
