"""Nodes' sessions: from a connection to the port until the last message of the node that came over it.

`connections` accepts what comes to the port, and tells sessions and HTTP apart; `tls_listener` does so over TLS, and
`connection_limits` has how many connections of each kind there may be. `node_sessions` carries nodes' messages to the
driver and its answers back. `node_reads` asks a node through its session for what it alone has. `join_pace` bounds how
often a node may come, `refusal_log` keeps lines about refused nodes few, and `revocation` ends what callers may no
longer do.

A session knows the driver, and no reader: nothing here imports from `reads`, `http`, `metrics` or `page`.
"""
