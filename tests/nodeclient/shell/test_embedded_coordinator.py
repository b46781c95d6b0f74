"""The flags of a coordinator for one host alone, and what its node does when it ends."""

from coordinatord.config.serve_flags import ServeConfig
from coordinatord.config.subcommands import parse
from coordinatord.protocol.fields import DURATION_S_MAX
from nodeclient.shell.embedded_coordinator import STANDALONE


def test_a_node_that_was_stopped_for_hours_finds_its_job_as_it_was() -> None:
    """Only this node can be silent, and its workers are stopped or work, but never replaced."""
    chosen = parse([*STANDALONE, "--ephemeral"], {})
    assert isinstance(chosen, ServeConfig)
    assert chosen.policy.outage_grace_s == DURATION_S_MAX
