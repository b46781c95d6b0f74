"""Stores a history in an etcd v3 cluster, through its JSON gateway, and elects the coordinator that leads.

`place` has the address of a cluster, and how to connect. `gateway` sends requests to any member that answers,
`requests` builds and parses them, and `refusals` explains rejections and timeouts. `keys` has the keys and their
meaning. `leadership` sends the requests of an election, and `election` decides from the answers who leads, and for how
long; `roster` lists the coordinators. `history` reads and writes the commits, `commit_log` decides which of their
values to merge, and `replica` has the same history as a database. `etcd_store` is the store around this room.
"""
