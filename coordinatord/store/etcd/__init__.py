"""A history in an etcd v3 cluster, which is spoken to by its own JSON gateway, and who leads over it.

`place` says where a cluster is and how it is spoken to. `gateway` sends requests to whichever member answers,
`requests` builds and reads them, and `refusals` explains what etcd refuses. `keys` has the keys and their meaning.
`leadership` finds out who leads, and `election` concludes from the answers who that is, and how long it may speak;
`roster` has who is there. `history` reads and writes the commits, `commit_log` knows which of their values are worth
merging, and `replica` has the same history as a database. `etcd_store`, beside this room, is the store of all that.
"""
