"""The contract between a worker and its nodeclient, which both import; standard library only.

`env` has the environment variables of a worker. `packets` encodes messages on the sockets between both:
`round_messages` are about the next round of a process that is reused, and `channel_messages` about kept state. `arena`
is the layout of the shared memory in which a worker saves its state, and `manifest` describes one saved state.
`recorders` reads the entries of torch's flight recorders, for a worker from its torch, and for nodeclient from files.
"""
