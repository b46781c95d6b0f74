"""The parts of kept state that a node holds: their memory, and their way from one node to another.

`arenas` owns the memory, and `digests` shows whether its bytes are still those that were saved. `landing` is the memory
of a part that comes in. `part_server` sends parts to other agents and `part_fetch` gets them, with the messages of
`part_messages`.

The other modules of `keeping` decide which part moves when.
"""
