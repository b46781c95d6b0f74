"""Accepts connections to the port, and carries messages between nodes and the driver over sessions.

A *session* is a node's WebSocket. It begins with the node's `Join`, and lasts as long as both sides live.

`connections` accepts all connections, and makes each a session or leaves it to HTTP. `tls_listener` accepts those over
TLS, and `connection_limits` limits their number by kind. `node_sessions` passes nodes' messages to the driver and its
answers back, and throttles joins. `node_reads` requests data from a node through its session, such as a log.
`refusal_log` limits the log lines about refused nodes. `revocation` ends sessions and requests with a revoked token.

Nothing here imports from `reads`, `http`, `metrics` or `page`.
"""
