"""The parts of kept state that a node holds: their memory, and their transfer between nodes.

A part is the state that one rank keeps of one step. `arena_memory` allocates memory, `arenas` owns it and finds the
parts in it, and `digests` detects damaged bytes. `landing` is the memory of a part that is being received.
`part_server` sends parts to other agents and `part_fetch` gets them, with the messages of `part_messages`. The other
modules of `keeping` know which parts are transferred.
"""
