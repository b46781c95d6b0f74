"""A leader that ends lets a standby lead at once."""

import asyncio
import gc
import socket
from pathlib import Path

import pytest

from coordinatord.commands.daemon import _lead as lead
from coordinatord.commands.reload import Reloader
from coordinatord.config.serve_flags import ServeConfig
from coordinatord.config.subcommands import parse
from coordinatord.protocol.messages import Desired
from coordinatord.runtime.systemd import SystemdNotifier
from coordinatord.server.sessions import node_sessions
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.leadership import Candidate
from coordinatord.store.etcd.roster import Coordinatord
from coordinatord.store.etcd_store import EtcdStore
from tests.support.etcd import EtcdNamespace, needs_etcd
from tests.support.raw_session import connect, join

pytestmark = [pytest.mark.slow, needs_etcd]

LONG_S = 600.0


async def test_a_standby_can_lead_before_a_silent_node_has_said_goodbye(
    space: EtcdNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_sessions, "CLOSE_WITHIN_S", LONG_S)
    threshold = gc.get_threshold()
    gateway, other = Gateway(space.place), Gateway(space.place)
    me = Coordinatord("h1", "127.0.0.1:29400", secure=False, since=0.0)
    candidate = Candidate(gateway, space.keys, me, LONG_S)
    await candidate.win_at_once()
    store = await EtcdStore.open(gateway, space.keys, candidate, tmp_path)
    settings = parse(["--store", str(space.place), "--ephemeral", "--insecure", "--host", "127.0.0.1"], {})
    assert isinstance(settings, ServeConfig)
    ended = asyncio.get_running_loop().create_future()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        leads = lead(Reloader(settings, None), SystemdNotifier({}, 0), None, ended, store, [listener.dup()], candidate)
        async with asyncio.TaskGroup() as group:
            leading = group.create_task(leads)
            async with connect(url, join("silent")) as peer:
                await peer.receive(Desired)
                ended.set_result(None)
                async for leader in other.watch(space.keys.leader):
                    if leader is None:
                        break
                assert not leading.done(), "the node has not answered"
                await peer.receive_end()
    gc.set_threshold(*threshold)
    await gateway.close()
    await other.close()
