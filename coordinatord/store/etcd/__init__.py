"""Stores records in an etcd v3 cluster, through its JSON gateway, and elects the coordinator that leads.

Several coordinators may share such a store: one leads, and writes; the others stand by to replace it.

`location` has the address of a cluster, and how to connect. `gateway` sends requests to a member that answers,
`requests` builds and parses them, and `refusals` explains rejections and timeouts. `keys` defines our keys.
`leadership` elects the leader: `election` decides from etcd's answers whether this coordinator leads, and for how long.
`roster` lists the coordinators. `history` reads and writes commits, `commit_log` decides which commits to merge, and
`replica` has the same records in a database. `etcd_store` is the store that uses all of these.
"""
