"""`nodeclient status`: prints the jobs of a coordinator, as a table for people or as JSON for programs.

Each job has a title with its state and reason, lines with facts, and a table of its nodes. Live jobs come first. A
terminal gets what fits a screen: only some of the ended jobs, no empty columns, and of a large job the nodes that need
attention. In a pipe or file each node has one line with all columns, so that programs find them. Among several jobs, an
ended one has only its title there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.http.api import (
    DrainedStatus,
    EarlierRunStatus,
    FailureStatus,
    HostStatus,
    JobStatus,
    KeptStatus,
    LateStatus,
    LostStatus,
    NodeStatus,
    RefusedStatus,
    SharedStatus,
)
from coordinatord.protocol.text import counted, listed, redone_words
from coordinatord.runtime.local_time import moment, now
from nodeclient.config.operate import StatusConfig
from nodeclient.operate.client import Client
from nodeclient.operate.formatting import Column, brief, budget, duration, start_ways, state_age, table
from nodeclient.operate.job_lookup import Status, get_status
from nodeclient.operate.terminal_info import Colour, TerminalInfo, terminal, write

ROWS_MAX = 24
"""The rows of a job's table on a terminal without `--all`: a screen."""

ENDED_MAX = 3
"""The ended jobs on a terminal without `--all`. More would push the live jobs off the screen."""

LOST_MAX = 8
"""The lost nodes on a terminal without `--all`."""

DRAINS_MAX = 8
"""The drained names on a terminal without `--all`."""

STEPLESS_S = 300.0
"""How long workers may run without a step before its lack is noteworthy: until then they may be compiling."""

STATES = {
    "running": Colour.GOOD,
    "succeeded": Colour.GOOD,
    "failed": Colour.BAD,
    "forming": Colour.CHANGING,
    "starting": Colour.CHANGING,
    "stopping": Colour.CHANGING,
    "stalled": Colour.CHANGING,
    "silent": Colour.CHANGING,
}
"""The colours of jobs' states."""

TROUBLED = frozenset({"disconnected", "silent", "stale", "stopped", "lost", "refused"})
"""The states of nodes that need attention."""


def run(config: StatusConfig) -> int:
    """Print the jobs and return the exit code."""
    client = Client(config.coordinators, config.access)
    output = terminal()
    fetch = partial(get_status, client, config.job)

    def lines(status: Status) -> list[str]:
        if config.json:
            return [json.dumps(status.data)]
        if config.all or not output.is_terminal:
            return status_lines(status, output, None, None, titles=not config.all and len(status.answer.jobs) > 1)
        return status_lines(status, output, ROWS_MAX, ENDED_MAX, " (--all shows them)")

    if not config.watch:
        write(lines(fetch()))
        return ExitCode.OK
    from nodeclient.operate.watch import watch_lines, watch_screen  # noqa: PLC0415 - most look once

    if output.is_terminal and not config.json:
        return watch_screen(fetch, _screen, client)
    return watch_lines(
        fetch, lambda status: lines(status) if config.json else [moment(now()), *lines(status), ""], _gist
    )


def status_lines(
    status: Status,
    output: TerminalInfo,
    rows_max: int | None,
    ended_max: int | None,
    hint: str = "",
    *,
    titles: bool = False,
) -> list[str]:
    """Return the lines about the jobs of a coordinator; `hint` says how to see rows and jobs that are omitted.

    `rows_max` limits the table of each job, and `ended_max` the number of ended jobs; None for no limit. With `titles`,
    ended jobs have only their titles.
    """
    jobs = _select_jobs(status.answer.jobs, ended_max)
    blocks = [_job_lines(job, output, rows_max, hint) for job in jobs if not (titles and job.ended)]
    if ended := [job for job in jobs if titles and job.ended]:
        blocks.append([line for job in ended for line in _title(job, output)])
    blocks = blocks or [["no jobs"]]
    if more := len(status.answer.jobs) - len(jobs):
        have = "has" if more == 1 else "have"
        blocks.append(output.wrapped(f"and {counted(more, 'more job')} that {have} ended{hint}"))
    if status.answer.drained:
        blocks.append(_drain_lines(status.answer.drained, output, rows_max))
    if status.answer.charged:
        lines = [
            line for host in status.answer.charged for line in output.wrapped(f"  {_charged(host)}", indent="    ")
        ]
        blocks.append([*output.wrapped("charged with failures; to clear one: nodeclient pardon HOST"), *lines])
    if status.answer.shared is not None:
        blocks.append(output.wrapped(coordinators(status.answer.shared)))
    if status.answer.insecure:
        blocks.append(output.wrapped("this coordinator lets everybody in, in the clear (--insecure)"))
    return [line for number, block in enumerate(blocks) for line in ([""] if number else []) + block]


def _charged(host: HostStatus) -> str:
    """Return a line about the charges against a host: `gpu7: quarantined for 2 failed rounds, ...; charges: ...`."""
    charges = [
        f"{each.fault}{f' ({each.error})' if each.error else ''}{state_age(each.age_s, ended=True)}"
        for each in host.charges
    ]
    charged = f"charged with {', '.join(charges)}, which weighs {host.weight:.2g} by now" if charges else ""
    return f"{host.host}: {'; '.join(filter(None, (host.quarantined, charged)))}"


def coordinators(shared: SharedStatus) -> str:
    """Return a line about the leader and the standbys."""
    standbys = f"standing by: {', '.join(standby.endpoint for standby in shared.standbys)}" if shared.standbys else ""
    if shared.problem:
        standbys = f"it is not known who stands by: {shared.problem}"
    return f"{shared.leader.endpoint} leads; {standbys or 'no coordinator stands by'}"


def _select_jobs(jobs: Sequence[JobStatus], ended_max: int | None) -> list[JobStatus]:
    """Return the live jobs, and then at most `ended_max` ended ones, the latest first."""
    ended = sorted((job for job in jobs if job.ended), key=lambda job: job.state_s or 0.0)
    return [job for job in jobs if not job.ended] + ended[:ended_max]


def _drain_lines(drains: Sequence[DrainedStatus], output: TerminalInfo, rows_max: int | None) -> list[str]:
    shown = drains if rows_max is None else drains[:DRAINS_MAX]
    lines = [f"{drain.node}: {drain.reason.removeprefix(drain.node).strip() or 'drained'}" for drain in shown]
    if len(drains) > len(shown):
        lines.append(f"and {len(drains) - len(shown)} more are drained")
    heading = output.wrapped("kept out of jobs; to let one in: nodeclient undrain NAME")
    return [*heading, *(line for text in lines for line in output.wrapped(f"  {text}", indent="    "))]


def _title(job: JobStatus, output: TerminalInfo) -> list[str]:
    """Return the line with a job's state and reason, wrapped."""
    since = state_age(job.state_s, ended=job.ended) if job.state_s is not None and job.health == "well" else ""
    since += f" in round {job.round}" if since and job.world_size and not job.ended else ""
    state = _shown_state(job)
    title, *rest = output.wrapped(f"job {job.job}  {state}{since}: {job.reason}")
    title = title.replace(f"  {state}", f"  {output.paint(state, STATES.get(state, Colour.BOLD))}", 1)
    return [title, *rest]


def _job_lines(job: JobStatus, output: TerminalInfo, rows_max: int | None, hint: str) -> list[str]:
    lines = _title(job, output)
    for fact in filter(None, _facts(job)):
        lines += output.wrapped(f"  {fact}", indent="    ")
    return lines + _node_lines(job, output, rows_max, hint)


def _facts(job: JobStatus) -> Iterable[str]:
    """Yield the lines between a job's title and its table of nodes; an empty one is not shown."""
    spares = f", {counted(job.spares, 'spare')}" if job.spares else ""
    nodes = "" if job.ended and not job.nodes else f", {counted(len(job.nodes), 'node')}{spares}"
    yield f"run {job.run}, {_round(job)}, {budget(job.restarts)}{nodes}"
    yield _progress(job)
    slower = () if job.begun is None else (("not in place", job.begun.why_not), ("cold", job.begun.why_cold))
    yield from (f"{way} on {why}" for way, why in slower if why and why not in job.reason)  # such as `node a: reason`
    yield "" if job.laggard is None else job.laggard.sentence
    yield job.unseen  # why a hang would not be noticed
    yield "" if job.kept is None else _kept(job.kept, job.reason)
    yield _copies(job)
    if job.earlier:
        yield f"before: {'; '.join(map(_earlier, job.earlier))}"
    if missing := job.missing.count:
        named = f": {listed(job.missing.nodes, missing)}" if job.missing.nodes else ""
        yield f"missing {counted(missing, 'node')}{named}"
    if job.failure is not None:
        yield _failure(job.failure)
        if log := _failure_log(job.failure):
            yield f"its log: {log}"


def _earlier(run: EarlierRunStatus) -> str:
    """Return how an earlier run ended, and its last step."""
    step = "" if run.step is None else f" at step {run.step}"
    return f"run {run.run} {run.state} {duration(run.ended_s)} ago{step}, after {duration(run.opened_s)}"


def _round(job: JobStatus) -> str:
    if job.world_size:
        ways = start_ways(job.begun)
        added = f" ({ways})" if ways and ways not in job.reason else ""
        return f"round {job.round}, world size {job.world_size}{added}"
    if job.ended:
        return f"last round {job.round}" if job.round else "no round"
    return f"no round now, the last was {job.round}" if job.round else "no round yet"


def _progress(job: JobStatus) -> str:
    parts = []
    step, pace = job.progress.step, job.progress.steps_per_s
    if step is not None:
        parts.append(f"step {step:,}" + ("" if pace is None else f" ({pace:.{2 if pace < 100 else 0}f} a second)"))  # noqa: PLR2004
    goodput, running_s = job.ledger.goodput, job.ledger.seconds.running
    if goodput is not None and job.opened_s is not None:
        parts.append(f"{100 * goodput:.1f} % of the run's {duration(job.opened_s)} spent training")
    elif running_s:
        known = "no step reported yet" if running_s < STEPLESS_S else "goodput not known: no steps reported"
        parts.append(f"workers ran for {duration(running_s)}, {known}")
    if redone_s := job.ledger.seconds.redone:
        parts.append(f"{brief(redone_s)} went into steps done again")
    return ", ".join(parts)


def _kept(kept: KeptStatus, reason: str) -> str:
    """Return the facts about kept state, in memory and on the disk, that are not in `reason`."""
    parts = []
    resumed = "" if kept.resumed is None else f"at step {kept.resumed:,} from {kept.resumed_from or 'memory'}"
    if resumed and resumed not in reason:
        redone = "" if kept.redone is None else f", {redone_words(kept.redone, at_least=kept.redone_at_least)}"
        parts.append(f"resumed {resumed}{redone}")
    parts.append(kept.unstepped)  # which ranks never call `ctx.step`
    if kept.unkept:
        parts.append(f"not kept: {kept.unkept}")
    if kept.interval_steps is not None:
        took = "" if kept.save_s is None else f" ({brief(kept.save_s)})"
        parts.append(f"saved in memory every {counted(kept.interval_steps, 'step')}{took}")
    if kept.pageable:
        parts.append(f"saves are slow, since their memory is not page-locked: {kept.pageable}")
    facts: dict[int, list[str]] = {}
    if kept.step is not None and kept.step != kept.resumed:
        facts.setdefault(kept.step, []).append("is whole in memory")
    if kept.copied is not None:
        facts.setdefault(kept.copied, []).append("outlives any host")
    if kept.disk_step is not None and f"step {kept.disk_step:,} is on the disk" not in reason:
        facts.setdefault(kept.disk_step, []).append("is on the disk")
    parts += [f"step {step:,} {' and '.join(of_step)}" for step, of_step in facts.items()]
    if kept.disk_writing is not None:
        parts.append(f"step {kept.disk_writing:,} is being written there")
    if kept.disk_problem:
        parts.append(f"the last step is not on the disk: {kept.disk_problem}")
    return "; ".join(filter(None, parts))


def _copies(job: JobStatus) -> str:
    """Return which nodes copy their kept state to which others, and why some state is not copied."""
    pairs = [f"{node.node} on {node.kept.copied_to}" for node in job.nodes if node.kept and node.kept.copied_to]
    parts = [f"copies of {listed(pairs, len(pairs))}"] if pairs else []
    if job.kept is not None and job.kept.copy_problem:
        parts.append(f"state that only one host has is not copied: {job.kept.copy_problem}")
    return ", ".join(parts)


def _failure(failure: FailureStatus) -> str:
    time = f"round {failure.round}, {duration(failure.age_s)} ago"
    if failure.cause == "divergence":
        return f"last failure: {time}: {failure.message}"
    if failure.left_early:
        return f"last failure: {time}: {failure.left_early}"
    place = f"rank {failure.rank} on node {failure.node} (host {failure.host})"
    if failure.shared_by:
        place = f"{failure.shared_by} with the same error, such as {place}"
    facts = ["not started" if failure.pid is None else failure.how, failure.message, failure.error]
    return f"last failure: {place}, {time}: {', '.join(filter(None, facts))}"


def _failure_log(failure: FailureStatus) -> str:
    """Return the log of the worker that is the root cause, and where it is; empty if none is known."""
    if failure.left_early:
        return f"{failure.early_log} (on node {failure.early[0].node})" if failure.early_log else ""
    return f"{failure.log} (on {failure.host})" if failure.log else ""


def _node_lines(job: JobStatus, output: TerminalInfo, rows_max: int | None, hint: str) -> list[str]:
    """Return the table of a job's nodes, and a line about those that it omits."""
    if not job.nodes and not job.lost and not job.refused:
        return [] if job.ended else ["  no nodes"]
    shown, hidden = list(job.nodes), Counter[str]()
    lost = [_lost_node(node) for node in job.lost]
    refused = [_refused_node(node) for node in job.refused]
    if output.is_terminal:
        shown.sort(key=lambda node: -node.behind)
    if rows_max is not None and len(shown) > rows_max:
        shown.sort(key=lambda node: node.state == "running" and not node.drained and not node.behind)
        hidden.update(_state(node) for node in shown[rows_max:])
        del shown[rows_max:]
    if rows_max is not None and len(lost) > LOST_MAX:
        hidden["lost"] = len(lost) - LOST_MAX
        del lost[LOST_MAX:]
    rows = [*shown, *refused, *lost]
    lines = _table(job, rows, output, pids=rows_max is None) if rows else []
    if hidden:
        states = ", ".join(f"{number} {state}" for state, number in hidden.most_common())
        lines += output.wrapped(f"  and {counted(hidden.total(), 'more node')}: {states}{hint}", indent="    ")
    return lines


def _lost_node(lost: LostStatus) -> NodeStatus:
    when = f"lost {duration(lost.lost_s)} ago" + (f", in round {lost.round}" if lost.round else "")
    reason = f"{when}: {lost.reason}"
    return NodeStatus(node=lost.node, host=lost.host, address="-", state="lost", reason=reason, last_seen_s=lost.lost_s)


def _refused_node(refused: RefusedStatus) -> NodeStatus:
    return NodeStatus(
        node=refused.node,
        host=refused.host,
        address="-",
        state="refused",
        reason=f"asks to be let in: {refused.reason}",
        last_seen_s=refused.refused_s,
    )


def _table(job: JobStatus, nodes: Sequence[NodeStatus], output: TerminalInfo, *, pids: bool) -> list[str]:
    is_useful = {
        "JOB": False,
        "HOST": any(node.host != node.node for node in nodes),
        "STEP": any(map(_reported_steps, nodes)),
        "STEPPED": any(map(_reported_steps, nodes)),
        "LATE": any(node.late for node in nodes),
        "VERSION": len({_version(node) for node in job.nodes} - {""}) > 1,
        "PIDS": pids and any(node.pids for node in nodes),
    }
    columns = [column for column in CELLS if not output.is_terminal or is_useful.get(column.title, True)]
    rows = [[CELLS[column](job, node) for column in columns] for node in nodes]

    def paint(row: int, title: str, cell: str) -> str:
        if row < 0:
            return output.paint(cell, Colour.FAINT)
        node = nodes[row]
        if title == "STATE" and node.state in TROUBLED:
            return output.paint(cell, Colour.BAD)
        if (title == "STATE" and (node.drained or node.state == "starting")) or (title == "STEP" and node.behind):
            return output.paint(cell, Colour.CHANGING)
        if title == "LATE" and job.laggard is not None and job.laggard.node == node.node:
            return output.paint(cell, Colour.CHANGING)
        return cell

    return table(columns, rows, output, paint)


CELLS: Mapping[Column, Callable[[JobStatus, NodeStatus], str]] = {
    Column("JOB"): lambda job, _: job.job,
    Column("NODE"): lambda _, node: node.node,
    Column("HOST", drop_order=3): lambda _, node: node.host,
    Column("ADDRESS", drop_order=4): lambda _, node: node.address,
    Column("STATE"): lambda _, node: _state(node),
    Column("RANKS", drop_order=1): lambda _, node: _span(node.ranks[0], node.ranks[-1]) if node.ranks else "-",
    Column("STEP"): lambda _, node: _steps(node),
    Column("STEPPED", drop_order=2): lambda _, node: "-" if node.step_age_s is None else duration(node.step_age_s),
    Column("LATE"): lambda _, node: _late(node.late),
    Column("SEEN", drop_order=2): lambda _, node: duration(node.last_seen_s),
    Column("VERSION"): lambda _, node: _version(node) or "-",
    Column("PIDS"): lambda _, node: ",".join(map(str, node.pids)) or "-",
    Column("REASON"): lambda _, node: node.reason,
}
"""The columns of a job's table, each with its cell for a node."""


def _steps(node: NodeStatus) -> str:
    steps = _reported_steps(node)
    if not steps:
        return "-"
    return _span(min(steps), max(steps)) + (f"(-{node.behind})" if node.behind else "")


def _late(late: LateStatus | None) -> str:
    """Return the share of collectives in which a node's latest worker is the last, and its lateness."""
    return "-" if late is None else f"{late.last:.0%},{brief(late.late_s)}"


def _reported_steps(node: NodeStatus) -> list[int]:
    """Return the steps of a node's workers, without those that have reported none."""
    return [step for step in node.steps if step is not None]


def _version(node: NodeStatus) -> str:
    """Return a node's release, or else its version of the protocol; empty if neither is known."""
    return node.release or ("" if node.protocol is None else f"protocol-{node.protocol}")


def _shown_state(job: JobStatus) -> str:
    """Return the job's state, or its health if it is not well."""
    return job.state if job.health == "well" else job.health


def _state(node: NodeStatus) -> str:
    return f"{node.state},drained" if node.drained else node.state


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _screen(status: Status, output: TerminalInfo, rows: int) -> list[str]:
    """Return lines that fit on a screen: as many ended jobs as fit, or else all live jobs with shortened tables."""
    for ended_max in range(ENDED_MAX, 0, -1):
        lines = status_lines(status, output, rows, ended_max)
        if len(lines) <= rows:
            return lines
    ended_max = int(all(job.ended for job in status.answer.jobs))  # one, if there is no live job
    other_lines = len(status_lines(status, output, 0, ended_max))
    tables = sum(bool(job.nodes) for job in _select_jobs(status.answer.jobs, ended_max))
    rows_max = max(0, (rows - other_lines - tables) // max(1, tables))  # one line of a table is its titles
    return status_lines(status, output, rows_max, ended_max)


def _gist(status: Status) -> object:
    """Return the part of a status whose change causes a new block. Ages, steps and paces change all the time."""
    jobs = [
        (
            (job.job, job.run, _shown_state(job), job.reason if job.health == "well" else ""),
            (job.round, job.restarts.used, job.missing, [lost.node for lost in job.lost]),
            [(node.node, node.state, node.drained, node.ranks, node.reason) for node in job.nodes],
            [(refused.node, refused.reason) for refused in job.refused],
        )
        for job in status.answer.jobs
    ]
    return jobs, status.answer.drained, None if status.answer.shared is None else coordinators(status.answer.shared)
