"""Nodes' sessions: from a connection to the port until the last message of the node that came over it.

`connections` accepts connections to the port, and finds out which are sessions and which are HTTP. `tls_listener`
accepts those over TLS, and `connection_limits` bounds their number by kind. `node_sessions` carries nodes' messages to
the driver and its answers back, and bounds how often a node may join. `node_reads` requests from a node, through its
session, what only the node has. `refusal_log` keeps lines about refused nodes few, and `revocation` ends sessions and
requests of callers who lost their access.

A session knows the driver, and no reader: nothing here imports from `reads`, `http`, `metrics` or `page`.
"""
