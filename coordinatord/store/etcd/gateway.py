"""Sends requests to an etcd cluster through its JSON gateway, and fails over from member to member.

The gateway is etcd's API over HTTP, for programs without gRPC. A request is tried up to twice on each member, within a
time limit. So a request that changes something must be safe to repeat: our transactions demand that nothing was written
since our last read or write.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import aiohttp

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.text import clip
from coordinatord.runtime.pinned_tls import load_certificate, why_unusable
from coordinatord.store.etcd.location import EtcdLocation
from coordinatord.store.etcd.refusals import EtcdAwayError, TokenRefusedError, refused, why_no_answer
from coordinatord.store.etcd.requests import EtcdAnswer, KeyValue, after, parsed, text_of
from coordinatord.store.interface import StoreError

TRY_WITHIN_S = 2.0
"""How long one member may take: a slow disk takes 0.5 s, and two members can be tried within a lease of 5 s."""

CONNECT_WITHIN_S = 1.0
"""How long a connection to a member may take."""

REQUEST_WITHIN_S = 6.0
"""How long one request may take, with all members."""

TRIES_PER_MEMBER = 2
"""How often each member is tried: an election of etcd's own leader may be over at the second time."""

PAUSE_S = 0.1
"""The pause before members are tried again, for the same reason, and before a new watch, since a proxy may end each
watch at once."""

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""The limit of an answer: a page has at most 16 values of 1.5 MiB, which are 32 MiB in base64."""

EVENT_BYTES_MAX = 1024 * 1024
"""The limit of one line of a watch, which is a change of the leader key."""

WATCH_SILENT_S_MAX = 2.0
"""How long a watch may be silent before the key is read again: a member without a majority keeps watches open, and
sends nothing."""


class _SilentError(EtcdAwayError):
    """A watch was silent for too long, perhaps because nothing has happened."""


class Gateway:
    """A client of a cluster; make it in the running event loop."""

    def __init__(self, location: EtcdLocation) -> None:
        """Connect with the first request. Raises `StoreError` if a certificate cannot be read."""
        self.location = location
        self._bases = [f"{'https' if location.tls else 'http'}://{member}" for member in location.members]
        self._tls = _context_of(location)
        # Not `total`: if it ends at the moment of a cancellation, aiohttp loses the cancellation.
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN_S)
        self._http = aiohttp.ClientSession(timeout=limits, trust_env=False)
        self._token = ""
        """The cluster's token for our user; empty before the first login."""

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def call(self, path: str, body: Mapping[str, Any], try_within_s: float | None = None) -> EtcdAnswer:
        """Return the answer to a request; one member may take `try_within_s`, or `TRY_WITHIN_S` if that is less.

        Raises `EtcdRefusedError`, `EtcdAwayError` if no member answers in JSON, `UnreadableStoreError` if the JSON is
        not etcd's, and `StoreError` if the user cannot be read.
        """
        last: StoreError = EtcdAwayError(f"etcd {self.location}: no member answers within {REQUEST_WITHIN_S:g} s")
        try:
            async with asyncio.timeout(REQUEST_WITHIN_S):
                for tries_left in reversed(range(TRIES_PER_MEMBER)):
                    for base in tuple(self._bases):
                        try:
                            answer = await self._send(base, path, body, try_within_s)
                        except EtcdAwayError as error:
                            last = error
                        else:
                            self._bases.sort(key=lambda other: other != base)  # the next request begins with it
                            return answer
                    await asyncio.sleep(PAUSE_S if tries_left else 0.0)
        except TimeoutError:
            pass
        raise last

    async def read(self, key: bytes) -> KeyValue | None:
        """Return a key as it is now; None if there is no such key. Raises `StoreError`."""
        return (await self.call("/v3/kv/range", {"key": text_of(key)})).first

    async def watch(self, key: bytes) -> AsyncIterator[KeyValue | None]:
        """Yield a key, or None, now and after each change. Raises as `call` does."""
        shown_at = -1  # the revision of the last yielded value: none yet
        while True:
            now = await self.call("/v3/kv/range", {"key": text_of(key)})  # needs a member with a majority
            written_at = 0 if now.first is None else now.first.mod_revision
            if written_at != shown_at:
                shown_at = written_at
                yield now.first
            with suppress(_SilentError):
                async with aclosing(self._events(key, now.header.revision + 1)) as events:
                    async for event in events:
                        shown_at = 0 if event is None else event.mod_revision
                        yield event
                await asyncio.sleep(PAUSE_S)  # only after a watch that was ended, not after a silence

    async def _events(self, key: bytes, revision: int) -> AsyncGenerator[KeyValue | None]:
        """Yield a key after each change from a revision on; None after a deletion."""
        begin = {"key": text_of(key), "start_revision": str(revision)}
        async with self._stream("/v3/watch", {"create_request": begin}) as lines:
            async for line in lines:
                result = parsed(line).result
                if result is None or result.canceled:
                    raise EtcdAwayError(f"etcd {self.location}: the watch of a key has ended: {clip(str(line), 200)}")
                for event in result.events:
                    yield event.present

    async def renew(self, lease: int, try_within_s: float) -> float:
        """Renew a lease; return how many seconds it lasts now, 0 if it has expired.

        `try_within_s` and the errors are those of `call`.
        """
        answer = await self.call("/v3/lease/keepalive", {"ID": str(lease)}, try_within_s)
        return 0.0 if answer.result is None else float(answer.result.ttl)

    async def all_below(self, prefix: bytes, page: int) -> AsyncIterator[KeyValue]:
        """Yield all keys with a prefix as of one revision; read `page` of them at once. Raises `StoreError`."""
        key, end, revision, more = prefix, after(prefix), 0, True
        while more:
            wanted = {"key": text_of(key), "range_end": text_of(end), "limit": str(page), "revision": str(revision)}
            answer = await self.call("/v3/kv/range", wanted)
            revision = revision or answer.header.revision
            for pair in answer.kvs:
                yield pair
            more = answer.more and bool(answer.kvs)
            key = answer.kvs[-1].key + b"\0" if answer.kvs else key

    async def _send(self, base: str, path: str, body: Mapping[str, Any], within_s: float | None) -> EtcdAnswer:
        try:
            async with asyncio.timeout(within_s):
                return await self._send_as_user(base, path, body)
        except TimeoutError as error:
            raise EtcdAwayError(f"etcd {self.location}: {base}: no answer within {within_s:g} s") from error

    async def _send_as_user(self, base: str, path: str, body: Mapping[str, Any]) -> EtcdAnswer:
        has_user = self.location.access.user_file is not None
        if has_user and not self._token:
            self._token = await self._authenticate(base)
        try:
            return await self._post(base, path, body, self._headers)
        except TokenRefusedError:
            if not has_user:
                raise
        self._token = await self._authenticate(base)
        return await self._post(base, path, body, self._headers)

    async def _authenticate(self, base: str) -> str:
        """Log in with the password from the file, which may have changed; return the token.

        Other requests use the old token meanwhile.
        """
        try:
            user, password = self.location.access.read_user()
        except OperationalError as error:
            raise StoreError(f"etcd {self.location}: {error}") from error
        return (await self._post(base, "/v3/auth/authenticate", {"name": user, "password": password}, {})).token

    async def _post(self, base: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> EtcdAnswer:
        try:
            async with (
                asyncio.timeout(TRY_WITHIN_S),
                self._http.post(base + path, json=body, headers=headers, ssl=self._tls) as answer,
            ):
                text = await answer.content.read(ANSWER_BYTES_MAX + 1)
                while not answer.content.at_eof() and len(text) <= ANSWER_BYTES_MAX:
                    text += await answer.content.read(ANSWER_BYTES_MAX + 1 - len(text))
                data = self._decoded(text)
                if answer.status != 200:  # noqa: PLR2004 - OK
                    raise refused(self.location, data, answer.status)
                return parsed(data)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._away(base, error) from error

    @asynccontextmanager
    async def _stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[Any]]:
        """Yield the lines of an endless answer of the member that answered last."""
        base = self._bases[0]
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN_S, sock_read=WATCH_SILENT_S_MAX)
        try:
            async with self._http.post(
                base + path, json=body, headers=self._headers, ssl=self._tls, timeout=limits
            ) as answer:
                if answer.status != 200:  # noqa: PLR2004 - OK
                    raise refused(
                        self.location, self._decoded(await answer.content.read(EVENT_BYTES_MAX)), answer.status
                    )
                yield self._lines(answer)
        except aiohttp.SocketTimeoutError as error:
            raise _SilentError(f"etcd {self.location}: a watch is silent") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._away(base, error) from error

    async def _lines(self, answer: aiohttp.ClientResponse) -> AsyncIterator[Any]:
        rest = b""
        async for piece in answer.content.iter_any():
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > EVENT_BYTES_MAX:
                raise EtcdAwayError(f"etcd {self.location}: it sends events without an end")
            for line in lines:
                yield self._decoded(line)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._token} if self._token else {}

    def _decoded(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            beginning = clip(text[:80].decode(errors="replace"))
            raise EtcdAwayError(f"etcd {self.location}: the answer is not that of an etcd ({beginning!r})") from None

    def _away(self, base: str, error: Exception) -> EtcdAwayError:
        why = why_no_answer(error, TRY_WITHIN_S, tls=self.location.tls)
        return EtcdAwayError(f"etcd {self.location}: {base}: {why}")


def _context_of(location: EtcdLocation) -> ssl.SSLContext | bool:
    """Return the TLS context for aiohttp; True, which is its default, without TLS. Raises `StoreError`."""
    access = location.access
    if not location.tls:
        return True
    named = f"{access.authorities}"
    try:
        context = ssl.create_default_context(cafile=None if access.authorities is None else str(access.authorities))
        if access.certificate is not None:
            named = f"{access.certificate} with the key {access.key}"
            load_certificate(context, access.certificate, access.key)
    except OSError as error:
        raise StoreError(f"etcd {location}: {named} cannot be used: {why_unusable(error)}") from error
    return context
