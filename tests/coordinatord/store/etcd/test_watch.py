"""A watch of a key goes on whatever becomes of its streams."""

import time
from http.server import BaseHTTPRequestHandler
from itertools import pairwise

from coordinatord.runtime.tasks import Tasks
from coordinatord.store.etcd.gateway import PAUSE_S
from coordinatord.store.etcd.location import EtcdLocation
from tests.support.canned_http import body, canned
from tests.support.etcd import gateway_to
from tests.support.raw_session import until


async def test_a_watch_whose_stream_ends_at_once_is_begun_anew_after_a_pause() -> None:
    begun: list[float] = []

    def end_at_once(handler: BaseHTTPRequestHandler) -> None:
        begun.append(time.monotonic())
        body(b"")(handler)

    answers = {"POST /v3/kv/range": body(b'{"header": {"revision": "5"}}'), "POST /v3/watch": end_at_once}
    with canned(answers) as (address, _):
        async with gateway_to(EtcdLocation.parse(f"etcd://{address}/any")) as gateway:
            tasks = Tasks()

            async def watch() -> None:
                async for _ in gateway.watch(b"key"):
                    pass

            tasks.spawn(watch(), name="watch")
            await until(lambda: len(begun) >= 3)
            await tasks.cancel()
    assert all(later - earlier > PAUSE_S / 2 for earlier, later in pairwise(begun))
