"""Rounds in place: a process leaves a round and takes part in the next one.

`elastic` calls a script's function, or goes through its loop, again in each round. `reused_worker` leaves a round and
takes the next one, over a connection to nodeclient. `group_sockets` gets the main thread out of a collective of gloo,
and `leftovers` removes what a round has left behind in this process. docs/rounds-in-place.md has the conditions of a
round in place.

In the user's process, the import does nothing. `rounds` and `elastic` do all of this where nodeclient offers rounds in
place, from the first round until the loop or the function ends:

* They connect to nodeclient by one Unix socket, and start the thread `workerlib-rounds`, which reads from it. They
  register a function that closes the socket in forked children, which cannot be undone.
* `gc.freeze` leaves all present objects out of garbage collections, if there are 50,000 or more. The end unfreezes
  them.
* A wrapper takes the place of `socket.socket.__init__`, to tell the script's sockets from those of gloo. A wrapper
  takes the place of `torch.distributed.distributed_c10d._new_process_group_helper`, to learn when torch makes a process
  group. Both are taken away at the end.
* At the break of a round the thread shuts down the TCP connections that came with the process groups, and aborts those
  of NCCL. The exception that this raises in the main thread is swallowed with its traceback, whose local variables are
  cleared.
* Between two rounds the main thread destroys all process groups and removes the gradient hooks of models wrapped in
  DistributedDataParallel. It sets again whether gradients are enabled. It has torch compile anew if the rank or the
  number of workers has changed, and puts the environment variables and the descriptors of stdout and stderr of the new
  round in place of the old ones.

No signal is handled.

A script that calls `workerlib.init` in place of these has none of this. To switch it off in a script as it is, start
the script without the variable COORDINATORD_ROUNDS (`env -u COORDINATORD_ROUNDS python train.py`): then each round has
new processes.
"""
