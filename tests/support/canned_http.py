"""A web server that always gives the same answers: those that a coordinatord would give after hours, or never."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgpack

Answer = Callable[[BaseHTTPRequestHandler], None]


def body(data: bytes, status: int = 200, content_type: str = "application/msgpack") -> Answer:
    """Answer with these bytes."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def packed(value: Any, status: int = 200) -> Answer:
    """Answer with a value in msgpack, as a coordinatord does."""
    return body(msgpack.packb(value), status)


def stream(*said: Any) -> Answer:
    """Answer with a stream of events that have these values as their data, or of these very bytes."""
    parts = (each if isinstance(each, bytes) else b"data: " + json.dumps(each).encode() + b"\n\n" for each in said)
    return body(b"".join(parts), content_type="text/event-stream")


def stands_by(leader: str) -> Answer:
    """Answer as a coordinator that stands by; `leader` is the address of the one that leads."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(307)
        handler.send_header("Location", f"http://{leader}{handler.path}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def in_turn(*answers: Answer) -> Answer:
    """Answer one request with each, and all later ones with the last."""
    left = list(answers)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(handler)

    return answer


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True


def break_off(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection in the middle of an answer."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.close_connection = True


@contextmanager
def canned(answers: Mapping[str, Answer] | Answer) -> Iterator[tuple[str, list[str]]]:
    """Serve answers, by method and path, or one for every request; yield the address, and the requests so far."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        """Some web server."""

        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            """Serve a connection until its client hangs up, which may not like the answer."""
            with suppress(ConnectionError):
                super().handle()

        def do_GET(self) -> None:
            """Answer with the canned answer of the path."""
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            requests.append(f"{self.command} {self.path}")
            answer = answers if callable(answers) else answers.get(requests[-1], body(b"no such page", 404))
            answer(self)

        do_POST = do_GET  # noqa: N815 - as the base class wants it

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


def a_node(name: str, **facts: Any) -> dict[str, Any]:
    """Return a node as a coordinatord shows it."""
    usual = {"node": name, "host": name, "address": "10.0.0.1", "state": "running", "reason": "its workers are running"}
    times = {"group_rank": 0, "ranks": [0], "last_seen_s": 0.4, "steps": [], "step_age_s": None, "drained": False}
    return {**usual, **times, **facts}


def a_job(*nodes: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Return a job as a coordinatord shows it."""
    usual = {"job": "mnist", "run": "r-1", "state": "running", "reason": "all workers are started", "round": 1}
    counts = {
        "world_size": 1,
        "restarts": {"used": 0, "max": 3, "window_s": None},
        "failure": None,
        "nodes": list(nodes),
    }
    return {**usual, **counts, **facts}
