"""Who is let in, over HTTP and for sessions, at a coordinator as it is by default."""

import asyncio
import logging
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from coordinatord.protocol.access_token import AccessToken, Role
from coordinatord.protocol.messages import Goal, RefusalCode
from coordinatord.security import gatekeeper
from coordinatord.security.gatekeeper import DeniedError
from coordinatord.security.token_store import TokenStore
from coordinatord.server.app import Server
from coordinatord.server.http.access_guard import FILTERED_BY_JOB, WITHOUT_TOKEN
from coordinatord.server.sessions import revocation
from coordinatord.store.sqlite_store import SqliteStore
from tests.coordinatord.server.page.test_stream import Viewer
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import join, until
from tests.support.raw_websocket import request, wire
from tests.support.secured import (
    TRUSTING,
    Secured,
    add_token,
    ask,
    goal,
    goal_of,
    refusal_of,
    secured,
    serving,
    session,
)

DRAIN = ("POST", "/v1/nodes/x/drain", {"by": "ana@login", "reason": "fan", "ahead": True})


@pytest.fixture
def ours(tmp_path: Path) -> Secured:
    return secured(tmp_path)


@pytest.fixture(autouse=True)
def _poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation, "POLL_EVERY_S", 0.01)


async def streamed(server: Server, path: str, token: AccessToken, kind: str) -> Any:
    """Return the data of the first event of a kind in a stream."""
    headers = {"Authorization": f"Bearer {token.text}"}
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"{server.url}{path}", ssl=TRUSTING, headers=headers) as answer,
    ):
        return await Viewer(answer).next(kind)


async def test_without_a_token_there_is_nothing_but_whether_it_is_well(ours: Secured) -> None:
    async with serving(ours) as server:
        assert server.url.startswith("https://")
        assert await ask(server, "/healthz") == (200, {"status": "ok"}, "")
        for path in ("/v1/jobs", "/v1/jobs/a", "/v1/events", "/v1/stream", "/metrics", "/none"):
            status, said, reason = await ask(server, path)
            assert (status, said["error"]) == (401, "no_token"), path
            assert reason.startswith('Bearer error="invalid_token", error_description="a token is wanted here')
        status, said, _ = await ask(server, DRAIN[1], None, DRAIN[0], DRAIN[2])
        assert (status, said["error"]) == (401, "no_token")


async def test_roles_bound_what_is_done(ours: Secured) -> None:
    reader, admin, node = ours.add("r", Role.READ), ours.token(Role.ADMIN), ours.token()
    async with serving(ours) as server:
        for token, read, act in ((reader, 200, 403), (admin, 200, 200), (node, 403, 403)):
            assert (await ask(server, "/v1/jobs", token))[0] == read
            assert (await ask(server, "/metrics", token))[0] == read
            assert (await ask(server, DRAIN[1], token, DRAIN[0], DRAIN[2]))[0] == act
        _, events, _ = await ask(server, "/v1/events", reader)
        assert events["events"][-1]["reason"] == "x drained by ana@login (token first-admin): fan"
        status, said, _ = await ask(server, "/healthz", reader)
        assert (status, said["insecure"]) == (200, False)
        status, said, reason = await ask(server, "/v1/jobs", node)
        state = ours.store.directory
        assert state is not None
        remedy = f"make one where coordinatord runs, by coordinatord token new --state-dir {state.parent} --role read"
        assert said["message"] == f"the token first-join has the role join, and this needs read: {remedy}"
        assert 'error="insufficient_scope"' in reason


async def test_who_asks_too_often_is_told_why_in_the_header_that_nodes_read(
    ours: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gatekeeper, "FAILURES_MAX", 1)
    async with serving(ours) as server:
        assert (await ask(server, "/v1/jobs"))[0] == 401
        status, _, reason = await ask(server, "/v1/jobs")
    assert status == 429
    assert "a token is wanted here" in reason
    assert "; too many requests of this address were not let in within a minute" in reason


async def test_a_node_comes_in_by_its_token_alone(ours: Secured) -> None:
    reader = ours.add("r", Role.READ)
    async with serving(ours) as server:
        for headers in ((), (f"Authorization: Bearer {reader.text}",), ("Authorization: Bearer x",)):
            async with wire(server.url, request(*headers), tls=TRUSTING) as peer:
                answer = await peer.answer()
                assert answer.split(b" ", 2)[1] in {b"401", b"403"}
        assert await goal_of(server, ours.token(), join("a")) is Goal.RUN


async def test_a_token_for_some_jobs_is_for_no_other(ours: Secured) -> None:
    token = ours.add("ana", Role.JOIN, "ana-*")
    async with serving(ours) as server:
        assert await goal_of(server, token, join("a", job="ana-1")) is Goal.RUN
        refused = await refusal_of(server, token, join("a", job="ben-1"))
        assert (refused.code, refused.retry) == (RefusalCode.FORBIDDEN, False)
        assert refused.message == "the token ana is for jobs ana-*, and not for ben-1"
        assert list(server.driver.machine.jobs) == ["ana-1"]


async def test_whatever_path_there_is_a_token_for_some_jobs_is_for_no_other(
    ours: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gatekeeper, "FAILURES_MAX", 1_000)
    token = ours.add("ana", Role.ADMIN, "ana-*")
    async with serving(ours) as server:
        _, described, _ = await ask(server, "/openapi.json", ours.token(Role.ADMIN))
        asked = 0
        for path, methods in described["paths"].items():
            for method in {*map(str.upper, methods)} - {"PARAMETERS"}:
                if (method, path) in WITHOUT_TOKEN | FILTERED_BY_JOB:
                    continue
                for name in ("ben-1", "Ana-1", "x%2Fana-1", "..%2Fana-1"):
                    filled = path.replace("{job}", name).replace("{node}", "ana-1")
                    status, said, _ = await ask(server, filled, token, method, {} if method == "POST" else None)
                    assert (status, said["error"]) == (403, "foreign_job"), filled
                    asked += 1
        assert asked > 20


async def test_a_token_for_some_jobs_sees_these_alone(ours: Secured) -> None:
    ana, ben = ours.add("ana", Role.READ, "ana-*"), ours.add("ben", Role.READ, "ben-*")
    admin = ours.token(Role.ADMIN)
    async with serving(ours) as server:
        for job in ("ana-1", "ana-2", "ben-1"):
            assert await goal_of(server, ours.token(), join("a", job=job)) is Goal.RUN
        await ask(server, DRAIN[1], admin, DRAIN[0], DRAIN[2])
        for token, jobs, drained in (
            (ana, ["ana-1", "ana-2"], 0),
            (ben, ["ben-1"], 0),
            (admin, ["ana-1", "ana-2", "ben-1"], 1),
        ):
            status, shown, _ = await ask(server, "/v1/jobs", token)
            assert (status, [job["job"] for job in shown["jobs"]], len(shown["drained"])) == (200, jobs, drained)
            shown = await streamed(server, "/v1/stream", token, "jobs")
            assert ([job["job"] for job in shown["jobs"]], len(shown["drained"])) == (jobs, drained)
        assert (await streamed(server, "/v1/stream?job=ana-1", ana, "job"))["job"] == "ana-1"
        for path in ("/v1/stream?job=ben-1", "/v1/stream?job=", "/v1/events", "/metrics"):
            assert (await ask(server, path, ana))[1]["error"] == "foreign_job", path
        unlike = await ask(server, "/v1/jobs/xen-1", ours.add("xen", Role.READ, "xen-*"))
        assert unlike[1]["message"] == "no job 'xen-1' is known here", "it does not learn that there is a ben-1"


async def test_a_live_node_keeps_its_identity(ours: Secured, caplog: pytest.LogCaptureFixture) -> None:
    thief = ours.add("thief", Role.JOIN)
    async with serving(ours) as server:
        async with wire(server.url, session(ours.token(), join("a", nodes=2)), tls=TRUSTING) as honest:
            assert await goal(honest) is Goal.WAIT
            for incarnation in (1, 2):  # its own, and that of a successor
                stolen = join("a", nodes=2, incarnation=incarnation)
                refused = await refusal_of(server, thief, stolen)
                assert (refused.code, refused.retry) == (RefusalCode.FORBIDDEN, True)
                assert "node a of job job is here already" in refused.message
            assert server.driver.machine.sessions == 1
            assert await goal_of(server, ours.token(), join("a", nodes=2)) is Goal.WAIT
        assert "with the token first-join; this one has the token thief" in caplog.text


async def test_a_node_keeps_its_identity_when_the_coordinator_starts_again(ours: Secured, tmp_path: Path) -> None:
    thief, store = ours.add("thief", Role.JOIN), SqliteStore.open(tmp_path / "state")
    async with serving(ours, store) as server:
        for name, token in (("a", ours.token()), ("b", ours.add("gone", Role.JOIN))):
            assert await goal_of(server, token, join(name, nodes=3)) is Goal.WAIT
    ours.store.revoke("gone")
    again = secured(tmp_path)
    async with serving(again, store) as server:
        assert (await refusal_of(server, thief, join("a", nodes=3, incarnation=2))).code is RefusalCode.FORBIDDEN
        assert await goal_of(server, ours.token(), join("a", nodes=3)) is Goal.WAIT
        assert await goal_of(server, thief, join("b", nodes=3)) is Goal.WAIT, "its token was revoked meanwhile"
        _, events, _ = await ask(server, "/v1/events?kind=node-joined", ours.token(Role.ADMIN))
        said = [event["reason"].partition(", by ")[2] for event in events["events"]]
        assert said == ["token first-join", "token gone"]
    await store.close()


async def test_a_node_that_is_away_when_its_token_is_revoked_may_come_back_with_another_one(
    ours: Secured, tmp_path: Path
) -> None:
    other, store = ours.add("other", Role.JOIN), SqliteStore.open(tmp_path / "state")
    async with serving(ours, store) as server:
        assert await goal_of(server, ours.token(), join("a", nodes=2)) is Goal.WAIT
    again = secured(tmp_path)
    async with serving(again, store) as server:
        refused = await refusal_of(server, other, join("a", nodes=2))
        assert "coordinatord token revoke first-join" in refused.message
        again.store.revoke("first-join")
        [run] = server.driver.machine.jobs.values()
        await until(lambda: run.members["a"].session.revoked)
        assert await goal_of(server, other, join("a", nodes=2)) is Goal.WAIT
        assert len(run.members) == 1
    await store.close()


async def test_a_revoked_token_ends_what_it_began(ours: Secured, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    other = ours.add("other", Role.JOIN)
    async with (
        serving(ours) as server,
        wire(server.url, session(ours.token(), join("a", nodes=3)), tls=TRUSTING) as peer,
        wire(server.url, session(other, join("b", nodes=3)), tls=TRUSTING) as stays,
    ):
        assert await goal(peer) is Goal.WAIT
        assert await goal(stays) is Goal.WAIT
        ours.store.revoke("first-join")
        await until(lambda: server.driver.machine.sessions == 1)
        status, said, _ = await ask(server, "/v1/session", ours.token())
        assert (status, said["error"]) == (401, "revoked_token")
        assert await goal_of(server, other, join("a", nodes=3)) is Goal.WAIT
    assert "access tokens that are no longer valid: first-join" in caplog.text


async def test_a_revoked_token_ends_its_session_whoever_has_asked_meanwhile(
    ours: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with (
        serving(ours) as server,
        wire(server.url, session(ours.token(), join("a", nodes=3)), tls=TRUSTING) as peer,
    ):
        assert await goal(peer) is Goal.WAIT
        ours.store.revoke("first-join")
        unknown = add_token(TokenStore(None), ours.security.pin, Role.JOIN, "x")
        with pytest.raises(DeniedError):  # to find this token, the gatekeeper reads the file again
            ours.security.gatekeeper.admit_uncounted(f"Bearer {unknown.text}", Role.JOIN)
        await until(lambda: server.driver.machine.sessions == 0)
    assert "its token first-join is no longer valid, so its session ends" in caplog.text


async def test_a_revoked_token_is_refused_at_once(ours: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation, "POLL_EVERY_S", TIMEOUT_S)
    async with serving(ours) as server:
        ours.store.revoke("first-admin")
        status, said, _ = await ask(server, "/v1/jobs", ours.token(Role.ADMIN))
        assert (status, said["error"]) == (401, "revoked_token")


async def test_a_programs_stream_ends_with_its_token(ours: Secured) -> None:
    """A page's stream also ends with the session of its browser."""
    headers = {"Authorization": f"Bearer {ours.add('r', Role.READ).text}"}
    async with (
        serving(ours) as server,
        aiohttp.ClientSession() as client,
        client.get(f"{server.url}/v1/stream", ssl=TRUSTING, headers=headers) as answer,
    ):
        assert await answer.content.readline()
        ours.store.revoke("r")
        async with asyncio.timeout(TIMEOUT_S):
            with suppress(aiohttp.ClientPayloadError):
                while await answer.content.readany():
                    pass


async def test_tls_before_1_3_is_not_spoken(ours: Secured) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(ours) as server:
        host, _, port = server.url.removeprefix("https://").rpartition(":")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(host, int(port), ssl=old)
