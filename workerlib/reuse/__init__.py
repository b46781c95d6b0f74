"""Rounds in place: a process leaves a round and takes part in the next one, so that no new process has to start.

`workerlib.in_place` uses it. `reused_worker` leaves a round and enters the next one, as nodeclient says over a
connection. `group_sockets` ends the main thread's wait in a collective of gloo, and `round_cleanup` removes the objects
of a round from this process. docs/rounds-in-place.md has the conditions of a round in place.

In the user's process, the import does nothing. `rounds` and `elastic` do all of this where nodeclient offers rounds in
place, from the first round until the loop or the function ends:

* They connect to nodeclient by one Unix socket, and start the thread `workerlib-rounds`, which reads from it. They
  register a function that closes the socket in forked children, which cannot be undone.
* `gc.freeze` leaves all present objects out of garbage collections, if there are 50,000 or more. They are unfrozen at
  the end.
* `socket.socket.__init__` is wrapped, to tell the script's sockets from those of gloo.
  `torch.distributed.distributed_c10d._new_process_group_helper` is wrapped, to notice when torch makes a process group.
  Both are restored at the end.
* When a round breaks, the thread shuts down the TCP connections of gloo's process groups, and aborts the process groups
  of NCCL. The main thread catches the exception that this raises, and clears the local variables of its traceback.
* Between two rounds the main thread destroys all process groups and removes the gradient hooks of models wrapped in
  DistributedDataParallel. It restores whether gradients are enabled. It has torch compile anew if the rank or the
  number of workers has changed, and replaces environment variables and the descriptors of stdout and stderr.

No signal is handled.

A script that calls `workerlib.init` instead has none of this. To switch it off without a change of the script, start it
without the variable COORDINATORD_ROUNDS (`env -u COORDINATORD_ROUNDS python train.py`): then each round has
new processes.
"""
