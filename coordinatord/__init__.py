"""coordinatord: the one authority on who is in a training job, which round is on, and who has which rank.

`protocol` has what both programs send, and `hints` why training programs fail. `core` makes all decisions, and `store`
makes them durable. `server` has the sockets and timers around the core, and `security` accepts or rejects callers.
`runtime` has what the shells of both programs need. `config` reads the settings, and `cli` runs one of the `commands`.
`DESIGN.md` beside this file has the reasons. Nothing here imports `nodeclient`, `workerlib` or torch. nodeclient
imports nothing from here but `protocol`, `hints` and `runtime`.
"""
