"""`coordinatord state`: prints the content of a state directory or of a store in etcd, as text or as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from coordinatord.commands.json_output import StoredJob, StoredNode, StoredState, as_json
from coordinatord.commands.offline_replay import final_state, replay_drains, restarts_of
from coordinatord.config.state_flags import StateConfig
from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.core.shown.job_view import drained_view
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.text import counted
from coordinatord.runtime.local_time import local, moment
from coordinatord.store.database import Database
from coordinatord.store.directory import DATABASE
from coordinatord.store.interface import StoreError

if TYPE_CHECKING:
    from coordinatord.store.etcd.roster import Coordinators


def show(config: StateConfig) -> int:
    """Print the content and return the exit code. Raises `StoreError`."""
    source = config.source
    if isinstance(source, Path):
        found = _stored_state(Database.copy_of(source / DATABASE), str(source), _bytes_in(source))
    else:
        from coordinatord.commands.shared_store import read_shared_state  # noqa: PLC0415 - a directory needs no HTTP

        database, size, coordinators = read_shared_state(source)
        found = _stored_state(database, str(source), size, coordinators)
    sys.stdout.write(f"{as_json(found) if config.json else _text(found)}\n")
    return ExitCode.OK


def _stored_state(database: Database, where: str, size: int, shared: Coordinators | None = None) -> StoredState:
    last_runs = dict(database.runs())  # the last one of each job, since they are in order
    return StoredState(
        state_dir=where,
        leader=None if shared is None or shared.leader is None else shared.leader.status,
        standbys=() if shared is None else tuple(standby.status for standby in shared.standbys),
        lease_s=None if shared is None else shared.lease_s,
        version=database.version,
        bytes=size,
        records=database.count(),
        jobs=tuple(_job(database, job, run) for job, run in last_runs.items()),
        drained=drained_view(replay_drains(database.history(job="", run=""))),  # they belong to no job
    )


def _bytes_in(directory: Path) -> int:
    """Return the size of the database with its write-ahead log."""
    try:
        return sum(file.stat().st_size for file in directory.glob(f"{DATABASE}*"))
    except OSError as error:
        raise StoreError(f"state directory {directory}: {error.strerror}") from error


def _job(database: Database, job: str, run_id: str) -> StoredJob:
    entries = database.history(job, run_id)
    run = final_state(entries)
    # An ended run has no nodes, so those before its end are shown.
    with_nodes = final_state(entries[:-1]) if run.state.ended and len(entries) > 1 else run
    # Those of the last round by group rank, some of which may have left, then the others.
    nodes = dict.fromkeys((*with_nodes.order, *with_nodes.members))
    return StoredJob(
        job=job,
        run=run_id,
        state=run.state,
        reason=run.reason,
        round=run.round,
        restarts=restarts_of(run),
        nodes=tuple(_node(with_nodes, node) for node in nodes),
        changed_at=entries[-1].at,
    )


def _node(run: DurableRun, node: str) -> StoredNode:
    member = run.members.get(node)
    assignment = None if member is None else member.assignment
    first, workers = (0, 0) if member is None or assignment is None else (assignment.first_rank, member.offer.workers)
    return StoredNode(
        node=node,
        host=None if member is None else member.offer.host,
        group_rank=None if assignment is None else assignment.group_rank,
        ranks=tuple(range(first, first + workers)),
    )


def _text(found: StoredState) -> str:
    facts = f"schema version {found.version}, {counted(found.records, 'record')}, {found.bytes:,} bytes"
    jobs = "".join(f"\n\n{_job_text(job)}" for job in found.jobs) or "\n\nno jobs"
    drained = "".join(f"\n  {drain.reason}" for drain in found.drained)
    return f"{found.state_dir}\n{_who_leads(found)}{facts}{jobs}" + (f"\n\ndrained{drained}" if drained else "")


def _who_leads(stored: StoredState) -> str:
    if "://" not in stored.state_dir:  # a directory, where no coordinators take turns
        return ""
    leader = "nobody leads" if stored.leader is None else f"{stored.leader.endpoint} leads"
    lease = "" if stored.lease_s is None else f", its lease lasts another {stored.lease_s:g} s"
    standbys = ", ".join(standby.endpoint for standby in stored.standbys) or "nobody stands by"
    return f"{leader}{lease}; {'standing by: ' if stored.standbys else ''}{standbys}\n"


def _job_text(job: StoredJob) -> str:
    facts = f"run {job.run}, round {job.round}, restarts {job.restarts.used} of {job.restarts.max}"
    nodes = "".join(f"\n  {_node_text(node)}" for node in job.nodes) or "\n  no nodes"
    changed = moment(local(job.changed_at), "milliseconds")
    return f"job {job.job}  {job.state}: {job.reason}\n{facts}, last changed {changed}{nodes}"


def _node_text(node: StoredNode) -> str:
    where = "gone" if node.host is None else f"host {node.host}"
    ranks = node.ranks
    span = f"ranks {ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}" if ranks else "no ranks"
    return f"{node.node}  {where}, {span}"
