"""coordinatord: the one authority on who is in a training job, which round is on, and who has which rank.

The rooms, from the pure to the worldly: `protocol` is what both sides send, `hints` knows why training programs fail,
`core` decides, `store` remembers, `server` carries, `security` knows who may speak; `runtime` is what the shells of
both programs need. `config` reads the settings, `token_flags` those of one command, and `store_flags` those
of a store in etcd; `cli` chooses one of the `commands`. `DESIGN.md` beside this file has the reasons. Nothing here
imports `nodeclient`, `workerlib` or torch; nodeclient imports nothing from here but `protocol`, `hints` and `runtime`.
"""
