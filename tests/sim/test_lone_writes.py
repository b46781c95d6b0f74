"""A node that ends without a coordinator, and writes before that what it keeps."""

from __future__ import annotations

from coordinatord.core.values.admin_requests import ForgetJob, StopJob
from coordinatord.protocol.exit_codes import ExitCode
from tests.sim.kept_copies import Keeps
from tests.sim.scenario import Scenario, Workers
from tests.sim.world import JOB, World

PAIR = Scenario(
    hosts=2,
    nodes_min=1,
    nodes_max=1,
    arrive_within_s=0.5,
    skips_idle=False,
    keeps=Keeps.SHARED,
    persist_every_s=600,
    workers=Workers(first_step_s=0.0, stubborn=0.0, slow_to_die=0.0),
)


def test_a_node_that_is_refused_for_good_reports_that_it_leaves_while_it_writes() -> None:
    world = World(1, PAIR)
    world.boot()
    world.until(world.is_running, within=30)
    spare = next(host for host in world.hosts.values() if host.node not in world.order)
    world.until(lambda: spare.agent is not None and bool(spare.agent.run), within=10)
    spare.cut_off()
    world.daemon.ask(StopJob(JOB, "operator", ""))
    world.until(lambda: world.run.durable.state.ended, within=60)
    world.daemon.ask(ForgetJob(JOB, "operator", ""))
    world.until(lambda: JOB not in world.daemon.machine.jobs, within=10)
    spare.reset()
    spare.heal()
    world.until(lambda: spare.exit is not None, within=30)
    assert spare.exit is not None
    assert spare.exit.code == ExitCode.REFUSED
