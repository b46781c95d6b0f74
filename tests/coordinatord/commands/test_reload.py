"""A reload reaches the coordinator that this process is at that moment, and the next one that it becomes."""

import pytest
from msgspec.structs import replace

from coordinatord.commands.reload import Reloader
from coordinatord.config.serve_flags import ServeConfig
from coordinatord.config.subcommands import parse
from coordinatord.core.rounds.policy import Policy

pytestmark = pytest.mark.usefixtures("root")  # a reload configures the logging of this process


class File:
    """Settings with a heartbeat that a test changes."""

    def __init__(self) -> None:
        self.heartbeat_s = 1.0

    def read(self) -> ServeConfig:
        """Return the settings with the present heartbeat."""
        settings = parse(["--ephemeral", "--insecure"], {})
        assert isinstance(settings, ServeConfig)
        return replace(settings, policy=replace(settings.policy, heartbeat_s=self.heartbeat_s))


def test_a_standby_leads_with_what_it_has_read_meanwhile() -> None:
    file, given = File(), list[Policy]()
    reloader = Reloader(file.read(), None, file.read)
    file.heartbeat_s = 2.0
    reloader.reload()
    policy = reloader.settings.policy
    assert policy.heartbeat_s == 2.0
    with reloader.changing(given.append, policy):
        assert not given
        file.heartbeat_s = 3.0
        reloader.reload()
    file.heartbeat_s = 4.0
    reloader.reload()
    assert [policy.heartbeat_s for policy in given] == [3.0]
    assert reloader.settings.policy.heartbeat_s == 4.0


def test_a_reload_while_a_coordinator_starts_reaches_it() -> None:
    file, given = File(), list[Policy]()
    reloader = Reloader(file.read(), None, file.read)
    policy = reloader.settings.policy
    file.heartbeat_s = 2.0
    reloader.reload()
    with reloader.changing(given.append, policy):
        assert [policy.heartbeat_s for policy in given] == [2.0]
