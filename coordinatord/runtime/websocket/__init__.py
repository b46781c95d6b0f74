"""WebSockets (RFC 6455) that need no task and no timer each, since a coordinator has thousands of them.

`handshake` makes and checks the upgrade request and its answer. `frames` converts bytes to messages and back.
`web_socket` is one end of an open WebSocket on an asyncio transport, and `web_socket_client` is the client's end.
"""
