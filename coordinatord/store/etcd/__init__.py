"""A history in an etcd v3 cluster, which is used through its JSON gateway, and the election of the leader.

`place` has the address of a cluster, and how to connect. `gateway` sends requests to whichever member answers,
`requests` builds and reads them, and `refusals` explains what etcd refuses or leaves unanswered. `keys` has the keys
and their meaning.
`leadership` sends the requests of an election, and `election` concludes from the answers who leads, and for how long;
`roster` lists the coordinators. `history` reads and writes the commits, `commit_log` knows which of their values are
worth merging, and `replica` has the same history as a database. `etcd_store`, beside this room, is the store around it.
"""
