"""The ports of a process that takes part in a job."""

import errno
import socket
from typing import Any

import pytest

from coordinatord.protocol.messages import Join, NodeOffer
from nodeclient.core.agent_settings import Settings
from nodeclient.shell.master_probe import ProbeListener
from nodeclient.shell.participation import Participation


async def test_the_port_of_the_round_that_is_over_stays_reserved_for_another_one() -> None:
    nothing: Any = lambda *_, **__: None  # noqa: E731 - it has no session
    part = Participation(
        Settings(1, 60.0, 10.0), Join, NodeOffer, ProbeListener("a", "127.0.0.1"), nothing, nothing, nothing
    )
    port = part._ports[0].port
    for _ in range(3):
        before, port = port, part.renew_port()
        with socket.socket() as other, pytest.raises(OSError) as caught:  # noqa: PT011 - the number follows
            other.bind(("", before))
        assert caught.value.errno == errno.EADDRINUSE
    part.close()
