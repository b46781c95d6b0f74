"""The parts of kept state that a node holds: their memory, and their way from one node to another.

`arenas` owns the memory, and `digests` shows whether it is still what it was. `landing` is the memory of a part that
comes in. `part_server` gives parts to other agents and `part_fetch` gets them, in the words of `part_messages`.

Who wants which part, and when, is for `keep` and `persist`, which both work with this room.
"""
