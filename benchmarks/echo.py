"""The limit of this stack: a bare WebSocket server on uvloop that unpacks each message and packs an answer.

    python -m benchmarks.echo ANSWER [--tls]

It stands on the same WebSocket as a coordinatord, but has no HTTP, no sessions and no decisions. Its answer is always
the msgpack message in ANSWER, in hexadecimal digits, so that it sends as much as a coordinatord.
"""

import asyncio
import signal
import socket
import ssl
import sys

import msgpack
import uvloop

from coordinatord.protocol.messages import FRAME_BYTES_MAX
from coordinatord.runtime.pinned_tls import server_context
from coordinatord.runtime.timers import Timeouts
from coordinatord.runtime.websocket.frames import FrameReader
from coordinatord.runtime.websocket.handshake import answer_to, headers_of
from coordinatord.runtime.websocket.web_socket import WebSocket
from coordinatord.security.identity import ephemeral_identity


class Echo(WebSocket):
    """One connection; it believes that the first packet is the whole request."""

    def __init__(self, answer: object, close_timeouts: Timeouts[WebSocket]) -> None:
        super().__init__(FrameReader(masked=True, most=FRAME_BYTES_MAX), close_timeouts)
        self._answer = answer
        self._upgraded = False

    def data_received(self, data: bytes) -> None:
        """Answer the request, and take in all else."""
        if self._upgraded:
            super().data_received(data)
            return
        self._upgraded = True
        found = headers_of(data.partition(b"\r\n")[2])
        assert found is not None  # noqa: S101 - the clients are ours
        self._transport.write(answer_to(found))

    def received(self, kind: int, message: bytes) -> None:
        """Answer a message."""
        del kind
        msgpack.unpackb(message)
        self.put(msgpack.packb(self._answer))

    def ended(self, error: Exception | None) -> None:
        """Do nothing."""


def secured() -> ssl.SSLContext:
    """Return the context of a coordinatord, with a key of its own."""
    context = server_context()
    ephemeral_identity().load_into(context)
    return context


async def serve(answer: object, tls: ssl.SSLContext | None) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    close_timeouts = Timeouts[WebSocket](1.0, WebSocket.abort)
    listener = socket.create_server(("127.0.0.1", 0), backlog=4_096)
    await loop.create_server(lambda: Echo(answer, close_timeouts), sock=listener, backlog=4_096, ssl=tls)
    print(f"echo listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(serve(msgpack.unpackb(bytes.fromhex(sys.argv[1])), secured() if "--tls" in sys.argv else None))
