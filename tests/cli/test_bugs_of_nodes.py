"""A bug ends a node, with its workers, instead of leaving them without anybody who decides."""

import asyncio
import os
from pathlib import Path

import pytest

from coordinatord.runtime.systemd import SystemdNotifier
from nodeclient.config.join_config import JoinConfig
from nodeclient.config.parse import parse
from nodeclient.core.agent import Agent
from nodeclient.shell.embedded_coordinator import EmbeddedCoordinator
from nodeclient.shell.node import Node
from tests.support.programs import TIMEOUT_S

pytestmark = pytest.mark.slow


async def test_an_exception_in_the_agent_ends_the_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stumble(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(Agent, "handle", stumble)
    chosen = parse(["join", "--coord", "127.0.0.1:1", "--", "true"])
    assert isinstance(chosen, JoinConfig)
    running = Node(chosen).run(EmbeddedCoordinator("text"), SystemdNotifier({}, os.getpid()))
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(running, TIMEOUT_S)
