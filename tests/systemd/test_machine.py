"""The units under a real systemd: two machines that are installed as the guide says, and what happens to them."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.runtime import __version__
from tests.support.hosts import Hosts
from tests.support.programs import TIMEOUT_S, Program, wait_until
from tests.systemd.cluster import (
    JOB,
    Cluster,
    guide_of_a_backup,
    guide_of_a_password,
    guide_of_an_upgrade,
    guide_of_another_coordinator,
)
from tests.systemd.machine import Machine, make_installation

pytestmark = pytest.mark.slow

DAEMON, SOCKET = "coordinatord.service", "coordinatord.socket"
NODE = f"nodeclient@{JOB}.service"
PYTHON = "/opt/coordinatord/bin/python"

GPU = "/dev/nvidia0"

STATE = "/var/lib/coordinatord"

TOKENS = f"{STATE}/security/tokens"
"""The first tokens, on the host of the coordinator."""

SERVING = r"serving at https?://\S+:29400: live jobs 1, nodes 2"

DYNAMIC_USERS = 61_184
"""The first user id of those that exist while their service runs; see systemd.exec(5)."""

KNOCK = """
import socket, ssl, sys, threading
from coordinatord.runtime.pinned_tls import pinned_context
context = pinned_context(lambda pin: None)
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
answered = 0
while not over.wait(0.002):
    with context.wrap_socket(socket.create_connection((sys.argv[1], 29400))) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\\r\\n\\r\\n")
        answered += connection.recv(12).endswith(b" 200")
        print("answered", answered, flush=True)
"""
"""Connects anew all the time until its input ends; dies of the first connection that is refused."""

COPY = """
import sqlite3, sys
sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))
"""
"""What the guide asks the program `sqlite3` for."""

FETCH = """
import sys, urllib.request
from pathlib import Path
from coordinatord.runtime.pinned_tls import pinned_context
token = next(line for line in Path(sys.argv[2]).read_text().splitlines() if ".admin." in line)
request = urllib.request.Request("https://127.0.0.1:29400" + sys.argv[1], headers={"Authorization": "Bearer " + token})
answer = urllib.request.urlopen(request, context=pinned_context(lambda pin: None))
print(answer.read().decode(errors="replace"))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Boot two machines, and follow the guide."""
    installation = tmp_path_factory.mktemp("opt")
    make_installation(installation)
    with ExitStack() as stack:
        hosts = stack.enter_context(Hosts("alpha", "beta"))
        machines = []
        for name in hosts.address:
            machines.append(Machine(name, hosts.on(name)[-1], installation))
            stack.callback(machines[-1].close)
            machines[-1].run("mknod", "--mode=666", GPU, "c", "1", "3")  # to whoever opens it, as good as /dev/null
        alpha, beta = machines
        cluster = Cluster(alpha, beta, hosts.address["alpha"])
        cluster.install()
        yield cluster


@pytest.fixture
def cluster(installed: Cluster) -> Iterator[Cluster]:
    """Yield the machines, whose job trains; pytest shows the log of their units if the test fails."""
    try:
        yield installed
    finally:
        for machine in installed.machines:
            print(f"---- {machine.name}\n{machine.journal()}")  # noqa: T201 - see above


@contextmanager
def changed(machine: Machine, unit: str, *lines: str) -> Iterator[None]:
    """Change the [Service] of a unit for a while, as `systemctl edit` does."""
    drop_in = f"/run/systemd/system/{unit}.d/changed.conf"
    machine.write(drop_in, "\n".join(["[Service]", *lines, ""]))
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "reset-failed", unit)  # what was started before is not counted
    machine.run("systemctl", "restart", unit)
    try:
        yield
    finally:
        machine.path(drop_in).unlink()
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "restart", unit)


def main_pid(machine: Machine, unit: str) -> str:
    """Return the process that systemd takes for the service."""
    return machine.show(unit, "MainPID")


def pids(workers: list[dict[str, Any]]) -> list[int]:
    """Return their processes, by rank."""
    return [worker["pid"] for worker in workers]


def status(machine: Machine, unit: str, pattern: str) -> str:
    """Wait for a status that a pattern fits, as in `systemctl status`; return it."""

    def look() -> str | None:
        text = machine.show(unit, "StatusText")
        return text if re.fullmatch(pattern, text) else None

    return wait_until(f"the status {pattern!r} of {unit}", look)


def test_the_guide_leads_to_a_job_that_trains_on_two_hosts(cluster: Cluster) -> None:
    workers = cluster.await_training()
    assert [worker["world"] for worker in workers] == ["2", "2"]
    assert [worker["supervised"] for worker in workers] == [[], []], "a worker could speak to systemd for its node"
    statuses = {status(machine, NODE, "round .*: running") for machine in cluster.machines}
    number = workers[0]["round"]
    assert statuses == {f"round {number}, rank {rank} of 2: running" for rank in (0, 1)}
    status(cluster.alpha, DAEMON, SERVING)
    for unit in (NODE, DAEMON, SOCKET):
        assert cluster.alpha.run("systemctl", "is-enabled", unit) == "enabled\n"


def test_the_daemon_serves_everything_though_it_may_do_next_to_nothing(cluster: Cluster) -> None:
    parts = {"/": "<html", "/metrics": "\nprocess_open_fds ", "/v1/jobs": "jobs"}
    for path, part in parts.items():
        assert part in cluster.alpha.run(PYTHON, "-c", FETCH, path, TOKENS), f"{path} is not served whole"
    seen = cluster.alpha.path(f"/proc/{main_pid(cluster.alpha, DAEMON)}/status").read_text()
    facts = dict(line.split(":\t", 1) for line in seen.splitlines() if ":\t" in line)
    assert (facts["Seccomp"], facts["NoNewPrivs"], int(facts["CapBnd"], 16)) == ("2", "1", 0)
    assert int(facts["Uid"].split()[0]) >= DYNAMIC_USERS


def test_another_coordinator_gets_the_key_of_the_first_by_the_guide(cluster: Cluster) -> None:
    """It has no etcd here: what matters is that its own user may read what root has copied."""
    cluster.beta.run("cp", f"/opt/source/systemd/{DAEMON}", f"/opt/source/systemd/{SOCKET}", "/etc/systemd/system/")
    cluster.beta.run("systemctl", "daemon-reload")
    state = "/var/lib/private/coordinatord"
    for line in guide_of_another_coordinator():
        asked, _, own = line.removeprefix("ssh root@FIRST ").partition(" | ")
        if own:
            alpha, beta = (f"nsenter --all --target {machine.leader}" for machine in cluster.machines)
            subprocess.run(["/bin/sh", "-ec", f"{alpha} {asked} | {beta} {own}"], check=True, timeout=TIMEOUT_S)
        else:
            cluster.beta.run("sh", "-ec", line)
    try:
        status(cluster.beta, DAEMON, r"serving at https://\S+:29400: live jobs 0, nodes 0")
        keys = [machine.path(f"{state}/security/key.pem") for machine in cluster.machines]
        assert keys[0].read_bytes() == keys[1].read_bytes()
        assert keys[1].stat().st_uid >= DYNAMIC_USERS
    finally:
        cluster.beta.run("systemctl", "disable", "--now", SOCKET, DAEMON)


def test_the_user_of_the_service_may_read_the_password_of_etcd_and_its_successor(cluster: Cluster) -> None:
    settings = ("User=coordinatord", "DynamicUser=yes", "StateDirectory=coordinatord", "StateDirectoryMode=0700")
    as_service = ("systemd-run", "--pipe", "--quiet", *(f"--property={setting}" for setting in settings))
    for password in ("first", "second"):
        cluster.alpha.write("/etc/coordinatord/etcd-user", f"coordinatord:{password}\n")
        cluster.alpha.run("sh", "-ec", f"umask 077; cd /etc/coordinatord; {guide_of_a_password()}")
        assert cluster.alpha.run(*as_service, "cat", f"{STATE}/etcd-user") == f"coordinatord:{password}\n"


def test_a_restart_of_the_daemon_disturbs_no_worker_and_refuses_no_connection(cluster: Cluster) -> None:
    before, daemon = cluster.await_training(), main_pid(cluster.alpha, DAEMON)
    cluster.alpha.run("systemctl", "reload", DAEMON)
    assert main_pid(cluster.alpha, DAEMON) == daemon
    enter = ("nsenter", "--all", "--target", str(cluster.beta.leader))
    with Program(*enter, PYTHON, "-c", KNOCK, cluster.address, stdin=subprocess.PIPE) as knocking:
        knocking.await_line("answered 1$")
        cluster.alpha.run("systemctl", "restart", DAEMON)
        assert main_pid(cluster.alpha, DAEMON) != daemon
        knocking.await_line(f"answered {len(knocking.lines) + 2}$")
        assert knocking.process.stdin is not None
        knocking.process.stdin.close()
        assert knocking.wait() == 0, knocking.output
    status(cluster.alpha, DAEMON, SERVING)
    assert pids(cluster.await_training()) == pids(before)
    urgent = cluster.beta.run("journalctl", "--no-pager", "--output=cat", "-p", "warning", "-u", NODE)
    assert "WARNING nodeclient: lost the coordinator" in urgent
    assert "INFO" not in urgent
    usual = cluster.alpha.run("journalctl", "--no-pager", "--output=cat", "-u", DAEMON)
    assert f"\nINFO    coordinatord: coordinatord {__version__} serves at alpha:29400: nodeclient page" in usual, (
        "without a second time"
    )


def test_an_upgrade_disturbs_no_worker_and_leaves_a_copy_that_is_whole(cluster: Cluster) -> None:
    before = cluster.await_training()
    for line in guide_of_an_upgrade():
        cluster.alpha.run("sh", "-ec", f"cd /opt/source\n{line}")
    status(cluster.alpha, DAEMON, SERVING)
    assert pids(cluster.await_training()) == pids(before)
    shown = cluster.alpha.run("coordinatord", "state", "--state-dir", "/backup/coordinatord-before")
    assert JOB in shown
    key = cluster.alpha.path("/backup/coordinatord-before/security/key.pem")
    assert key.read_bytes() == cluster.alpha.path("/var/lib/private/coordinatord/security/key.pem").read_bytes()


def test_a_backup_is_restored_under_a_running_job(cluster: Cluster) -> None:
    before = cluster.await_training()
    (database, keys), restored = guide_of_a_backup()
    [files] = re.findall(r"^sqlite3 (\S+) .*'(\S+)'", database)
    cluster.alpha.run("mkdir", "-p", "/backup")
    cluster.alpha.run(PYTHON, "-c", COPY, *files)
    for line in (keys, *restored):
        cluster.alpha.run("sh", "-ec", line)
    status(cluster.alpha, DAEMON, SERVING)
    assert pids(cluster.await_training()) == pids(before)


def test_a_token_that_is_replaced_disturbs_no_worker_and_the_nodes_go_on_with_the_new_one(cluster: Cluster) -> None:
    before = cluster.await_training()
    listed = cluster.alpha.run("coordinatord", "token", "list", "--state-dir", STATE)
    old = [machine.name for machine in cluster.machines]
    assert set(old) <= set(re.findall(r"^(\S+) .* valid$", listed, re.MULTILINE))
    for machine in cluster.machines:
        made = cluster.alpha.run("coordinatord", "token", "new", "--state-dir", STATE)
        machine.write("/etc/nodeclient/token", made)
    for name in old:
        cluster.alpha.run("coordinatord", "token", "revoke", name, "--state-dir", STATE)
    ends = [f"its token {name} is no longer valid, so its session ends" for name in old]
    wait_until("the end of both sessions", lambda: all(line in cluster.alpha.journal() for line in ends))
    assert pids(cluster.await_training()) == pids(before)
    nodes = [main_pid(machine, NODE) for machine in cluster.machines]
    cluster.alpha.run("nodeclient", "restart", JOB, "--coord", cluster.address, "--token-file", TOKENS)
    cluster.await_training(after_round=before[0]["round"])
    assert [main_pid(machine, NODE) for machine in cluster.machines] == nodes


def test_a_daemon_whose_event_loop_is_stuck_is_restarted(cluster: Cluster) -> None:
    with changed(cluster.alpha, DAEMON, "WatchdogSec=3"):
        before, daemon = cluster.await_training(), main_pid(cluster.alpha, DAEMON)
        cluster.alpha.run("kill", "-STOP", daemon)
        wait_until("another daemon", lambda: main_pid(cluster.alpha, DAEMON) not in {"0", daemon})
        status(cluster.alpha, DAEMON, SERVING)
        assert pids(cluster.await_training()) == pids(before)


def test_a_killed_node_comes_back_and_rejoins(cluster: Cluster) -> None:
    before = cluster.await_training()
    cluster.beta.run("kill", "-KILL", main_pid(cluster.beta, NODE))
    now = cluster.await_training(after_round=before[0]["round"])
    assert not set(pids(now)) & set(pids(before))


@pytest.mark.long
def test_a_node_whose_event_loop_is_stuck_comes_back_and_rejoins(cluster: Cluster) -> None:
    with changed(cluster.beta, NODE, "WatchdogSec=3"):
        before, stuck = cluster.await_training(), main_pid(cluster.beta, NODE)
        cluster.beta.run("kill", "-STOP", stuck)
        cluster.await_training(after_round=before[0]["round"])
        assert main_pid(cluster.beta, NODE) != stuck


def test_stop_lets_the_workers_save_for_as_long_as_their_node_allows(cluster: Cluster) -> None:
    with changed(cluster.beta, NODE, "TimeoutStopSec=4"):
        before = cluster.await_training()
        for machine in cluster.machines:
            machine.write("/home/nodeclient/seconds-to-save", "5")
        cluster.beta.run("systemctl", "stop", NODE)
        for machine in cluster.machines:
            machine.path("/home/nodeclient/seconds-to-save").unlink()
        assert [cluster.reported(f"saved-{rank}") for rank in (0, 1)] == [{"pid": worker["pid"]} for worker in before]
        assert cluster.beta.show(NODE, "ActiveState") == "inactive", "it has not failed, and does not come back"
        status(cluster.alpha, NODE, "waiting for nodes: 1 of 2 joined.*")


def test_a_job_that_an_operator_stops_does_not_come_back(cluster: Cluster) -> None:
    cluster.await_training()
    cluster.alpha.run("nodeclient", "stop", JOB, "--coord", cluster.address, "--token-file", TOKENS)
    for machine in cluster.machines:
        machine.await_shown(NODE, "ActiveState", "inactive")
        assert machine.show(NODE, "StatusText") == "stopped by root@alpha (token first-admin)"
        assert machine.show(NODE, "ExecMainStatus") == str(ExitCode.STOPPED.value)
        assert machine.run("systemctl", "is-enabled", NODE, wrong=True) == "disabled\n", "nor at the next boot"
    for machine in cluster.machines:
        machine.run("systemctl", "enable", "--now", NODE)


def test_a_wrong_setting_of_a_node_fails_its_start_once(cluster: Cluster) -> None:
    cluster.configure("wrong", NNODES="many")
    cluster.alpha.run("systemctl", "start", "nodeclient@wrong", wrong=True)
    assert cluster.alpha.show("nodeclient@wrong", "ActiveState") == "failed"
    assert cluster.alpha.show("nodeclient@wrong", "ExecMainStatus") == str(ExitCode.USAGE.value)
    assert cluster.alpha.show("nodeclient@wrong", "NRestarts") == "0"
