"""coordinatord: the one authority on who is in a training job, which round is on, and who has which rank.

The rooms, from the pure to the worldly: `wire` is the protocol, `core` decides, `store` remembers, `server` carries.
`DESIGN.md` beside this file says why. Nothing here imports `nodeclient`, `workerlib` or torch.
"""
