"""What a worker and its nodeclient agree on; it imports the standard library only, and nodeclient imports no more.

`env` has the variables that a worker starts with. `packets` frames messages on the socket between both,
`round_messages` are about the next round of a process that is used again, and `channel_messages` about kept state.
`arena` is the layout of the shared memory in which a worker saves its state, and `manifest` the description of one
saved state. `recorders` describes the entries of torch's flight recorders, which a worker reads from its torch, and
nodeclient from files.
"""
