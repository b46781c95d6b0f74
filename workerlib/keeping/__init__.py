"""Kept state: the objects of `ctx.keep` outlive the workers, in memory of their node.

*Big* state is parameters and what the optimizer keeps of them. In most jobs all ranks have the same, so it is saved now
and then, by some of them. *Small* state is each rank's own, such as buffers and random state, and is saved at each
step. nodeclient owns the memory: an *arena* for each local rank, with *places* for three big states and six small ones.

Saving: `keeper` decides when state is saved and by which thread, and `state_lock` gives the state to one thread at a
time. `process_hooks` calls the keeper. `step_numbers` finds out to which step the state belongs, and `step_saver` saves
it: `generations` writes the big state, `small_state` the small one with `random_state`, and `intervals` decides how
often. `gate` makes optimizers wait for the collectives of a GPU, and copies state from there. `page_locking` makes
these copies fast. `arena_request` requests memory, and `keep_channel` is the connection. `unkept_state` finds state
that is not kept.

Objects: `adapter` has the base class of adapters. `kept_objects` adapts each kind of object, and `kept_containers`
dicts and lists of tensors. `pieces` describes tensors and their shards, `tensor_digest` computes their digest, and
`plain_values` turns other values into JSON. `restoring` restores the objects, and `kept_errors` has the errors.

Ends: `planned_end` receives the order to end a round, and blocks training between two steps before that end.
`checkpoints` tells a script when to write a checkpoint of its own. `kept_storage` takes the place of a disk under
`torch.distributed.checkpoint`. `workerlib.contract` has the layout of the memory, and the messages about it.

In the user's process, the import does nothing. `ctx.keep` does all of this where nodeclient offers memory:

* It connects to nodeclient by one Unix socket, and starts the thread `workerlib-keep`, which reads from it until the
  process ends or leaves its round. When the round breaks, this thread copies the state, if training is between two
  steps. Without a GPU, a timer thread maps the pages of new memory once.
* It maps shared memory of nodeclient: one file for each arena. A state that has outgrown its arena gets a larger one.
* It registers a pre-hook of torch for the steps of all optimizers, which also wraps their closures. If other ranks may
  have the same state, it registers a forward hook on each module. It registers a function with atexit, to save at the
  end of Python. All of these are removed when training ends.
* With a GPU, the first step of an optimizer in each step of training waits until the GPU has passed all collectives.
  Copies have a stream of their own. When nodeclient grants memory, threads have CUDA's driver lock its pages, and a
  function registered with atexit waits for these threads.
* `ctx.step` copies the small state, makes a digest of the big one at some steps if other ranks have the same, and
  stands still when a round is about to end. It may raise `LeftRoundError` in a process that is used again.
* It registers a function that closes the connection in forked children, and stays registered. A `KeptStateError` may
  register a function with atexit that writes into the error file that no restart helps.
* It changes the given objects, and the random state of Python, numpy and torch, only to restore kept state. It reshards
  modules of `fully_shard`. Nothing is patched.
* If a process group has failed and nodeclient does not notice, it saves and ends the process by `os._exit`.

`should_checkpoint`, `checkpointed`, `KeptWriter` and `KeptReader` connect in the same way, with the same thread and a
function for forked children but no hooks on optimizers and modules. Without nodeclient's channel,
`should_checkpoint` handles signals as `should_stop` does. With it, `checkpointed` wraps the script's own handlers of
these signals before it reports the last checkpoint. `KeptWriter` and `KeptReader` add a few types of Python and numpy
to those that torch trusts in a pickle.

Where nodeclient offers this memory, `init` sets three variables of torch's NCCL, so that torch does not end the process
when a collective fails. A value of the user's stays.

In a script that calls none of these functions, only the variables are set. To switch all of this off without a change
of the script, start nodeclient with `--keep-memory 0`: then `ctx.keep` only checks the objects and returns -1, a save
of `KeptWriter` is left out with a warning, `should_checkpoint` is a collective as under torchrun, and `init` sets no
variable.
"""
