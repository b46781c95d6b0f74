"""WebSockets (RFC 6455) for sessions: binary messages without extensions, and without a task or a timer for each.

`handshake` makes and checks the upgrade request and its answer. `frames` converts bytes to messages and back.
`web_socket` is one end of an open WebSocket on an asyncio transport, and `web_socket_client` is the client's end.
"""
