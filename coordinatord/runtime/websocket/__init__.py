"""WebSockets (RFC 6455) as sessions need them: binary messages and no extensions, without a task or a timer for each.

`handshake` makes and checks the request to upgrade and its answer. `frames` turns bytes into messages and back.
`web_socket` is one end of an open WebSocket on a transport of asyncio, in clear or over TLS, and `web_socket_client`
the end that requests one.
"""
