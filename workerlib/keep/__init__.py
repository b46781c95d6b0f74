"""Kept state: what `ctx.keep` was given outlives the workers, in memory of their node.

`arena` is the layout of that memory, and `channel_messages` what a worker and its nodeclient say to each other about
it; both are the contract of the two programs, and of the standard library alone.
"""
