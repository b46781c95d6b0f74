"""A coordinator that stands by, and one whose turn it is to lead and that cannot."""

import asyncio
import gc
import logging
import os
import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordinatord.commands.daemon import _serve as serve
from coordinatord.config.serve_flags import ServeConfig
from coordinatord.config.subcommands import parse
from coordinatord.protocol.messages import Desired
from coordinatord.runtime.systemd import SystemdNotifier
from nodeclient.host.ports import PortReservation
from tests.support.disks import mounted
from tests.support.etcd import EtcdNamespace, needs_etcd
from tests.support.programs import BIN, Program, clean_environ, run, wait_until
from tests.support.raw_session import connect, join
from tests.support.standbys import LEADS, STANDS_BY

DISK_BYTES = 4 * 1024 * 1024

ROOM_BYTES = 16 * 1024
"""Room for the lock of the state directory, and for no database."""


@pytest.mark.usefixtures("collects_nothing")
async def test_a_standby_collects_garbage_and_says_that_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    loop, path = asyncio.get_running_loop(), tmp_path / "notify"
    with socket.socket() as nobody, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        nobody.bind(("127.0.0.1", 0))
        systemd.bind(str(path))
        systemd.setblocking(False)
        settings = parse(["--store", f"etcd://127.0.0.1:{nobody.getsockname()[1]}/x", "--ephemeral", "--insecure"], {})
        assert isinstance(settings, ServeConfig)
        notifier = SystemdNotifier({"NOTIFY_SOCKET": str(path)}, 0)
        async with asyncio.TaskGroup() as group:
            group.create_task(serve(settings, None, notifier, None, [socket.create_server(("127.0.0.1", 0))]))
            assert (await loop.sock_recv(systemd, 1000)).startswith(b"READY=1")
            assert gc.isenabled()
            os.kill(os.getpid(), signal.SIGTERM)
    assert caplog.messages[-1] == "stopping"


@needs_etcd
@pytest.mark.slow
def test_one_without_room_for_the_history_says_so_and_leads_once_there_is_room(
    space: EtcdNamespace, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(mounted(tmp_path / "disk", DISK_BYTES))
        reserved = PortReservation()
        stack.callback(reserved.close)
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(DISK_BYTES - ROOM_BYTES))
        where = ("--host", "127.0.0.1", "--port", str(reserved.port), "--insecure")
        kept = ("--store", str(space.place), "--state-dir", str(disk / "state"))
        program = Program(BIN / "coordinatord", *where, *kept, environ=clean_environ())
        stack.callback(program.close)
        said = re.compile(
            "this coordinator cannot lead now, although it is its turn: .*the disk is full: make room there"
        )
        wait_until("another try", lambda: sum(said.search(line) is not None for line in program.lines) >= 2)
        health = ("curl", "--silent", f"http://127.0.0.1:{reserved.port}/healthz")
        wait_until("it to say why nobody leads", lambda: "the disk is full: make room there" in run(*health).stdout)
        ask = (BIN / "nodeclient", "status", "--coord", f"127.0.0.1:{reserved.port}", "--insecure")
        why = "stands by, and nobody leads: this coordinator cannot lead: "
        wait_until("status between two tries", lambda: why in run(*ask).stderr)
        assert "is coordinatord running there" not in run(*ask).stderr
        ballast.unlink()
        program.await_line(LEADS)
        assert program.stop() == 0


@needs_etcd
@pytest.mark.slow
def test_one_that_stands_by_reads_its_settings_again_and_leads_with_them(space: EtcdNamespace, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("heartbeat = 1\n")
    flags = ("--config", file, "--store", str(space.place), "--ephemeral", "--insecure", "--host", "127.0.0.1")

    async def granted() -> float:
        async with space.led():
            program = Program(BIN / "coordinatord", *flags, "--port", "0", environ=clean_environ())
            stack.callback(program.close)
            await asyncio.to_thread(program.await_line, STANDS_BY)
            file.write_text("heartbeat = 20\n")
            program.signal(signal.SIGHUP)
            await asyncio.to_thread(program.await_line, "settings reloaded: heartbeat 1 to 20$")
        url = (await asyncio.to_thread(program.await_line, r"listening on (\S+)"))[1]
        async with connect(url, join("a", nodes=2)) as peer:
            return (await peer.receive(Desired)).heartbeat_s

    with ExitStack() as stack:
        assert asyncio.run(granted()) == 20
