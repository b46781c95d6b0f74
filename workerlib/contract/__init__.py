"""The contract between a worker and its nodeclient: variables, messages and memory that both sides have to agree on.

nodeclient imports these modules, and it never imports torch. So they use only the standard library.

`env` has the environment variables of a worker, and the format of the slot in which it reports its steps. `packets`
encodes messages on the Unix sockets between both: `round_messages` are about the next round of a process that is used
again, and `channel_messages` about kept state. `arena` is the layout of the shared memory in which a worker saves its
state, and `manifest` describes one saved state. `recorders` reads the entries of torch's flight recorders: a worker
reads them from its torch, and nodeclient from files.
"""
