"""Made-up jobs, as the live page receives them: a state that takes hours to come about is shown at once."""

from operator import attrgetter
from typing import Any

from msgspec import json

from coordinatord.protocol.http.api import (
    ApiEvent,
    FailureStatus,
    JobStatus,
    LedgerStatus,
    NodeStatus,
    ProgressStatus,
    RestartsStatus,
    RoundStatus,
    SecondsStatus,
)
from coordinatord.protocol.http.page_events import ON_PAGE, NodeTable, PageJob, SeriesStatus
from coordinatord.protocol.schema import plain_without
from coordinatord.server.http import live_updates
from tests.support.browser import Page

BEHIND = 41
"""The node that is behind, by its number."""

LATE_STEP, STEP = 12_182, 12_336

TRAINED_S = 3_600.0

SHOW = """import('/page/job.js').then(({ jobPage }) => {
  globalThis.asked = [];
  globalThis.fetch = async (address) => {
    asked.push(address);
    const kinds = new URL(address, location).searchParams.get('kind')?.split(',');
    const events = EVENTS.filter((event) => !kinds || kinds.includes(event.kind));
    return new Response(JSON.stringify({ events, upto: 'x-9' }));
  };
  const page = jobPage();
  const body = document.getElementById('body').cloneNode(true);
  body.hidden = false;
  body.removeAttribute('data-empty');
  body.querySelector('main').replaceChildren(page.element);
  document.body.replaceChildren(body);
  page.update(JOB, 0);
})"""
"""Shows a job, and answers for the coordinator when the page asks for events."""


def show(page: Page, job: PageJob, *events: ApiEvent) -> None:
    """Let a page show a job."""
    page.evaluate(SHOW.replace("EVENTS", _json(events)).replace("JOB", _json(job)))


def _json(shown: object) -> str:
    return json.encode(plain_without(shown, ON_PAGE)).decode()


def a_node(number: int, **facts: Any) -> NodeStatus:
    """Build a node of eight workers."""
    name = f"gpu-rack{number // 40:02}-node{number:03}.internal"
    step = LATE_STEP if number == BEHIND else STEP
    usual: dict[str, Any] = {
        "node": name,
        "host": name,
        "address": f"10.0.{number // 256}.{number % 256}",
        "state": "running",
        "reason": "its workers are running",
        "group_rank": number,
        "ranks": tuple(range(8 * number, 8 * number + 8)),
        "last_seen_s": 0.4,
        "release": "0.1.0",
        "steps": (step,) * 8,
        "step_age_s": 0.2,
        "behind": STEP - step,
    }
    return NodeStatus(**usual | facts)


def a_failure_status(**facts: Any) -> FailureStatus:
    """Build a failure whose exception is long."""
    error = f"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB{' of memory that is not there' * 12}"
    usual: dict[str, Any] = {
        "round": 1,
        "nodes": 3,
        "node": "gpu2",
        "host": "gpu2",
        "rank": 1,
        "local_rank": 1,
        "pid": 4711,
        "exit_code": 1,
        "how": "exit code 1",
        "message": "",
        "error": error,
        "last_lines": ("Traceback (most recent call last):", f'  File "{"very/" * 30}train.py", line 1', error),
        "age_s": 90.0,
        "consequences_count": 0,
        "log": "/var/log/training/mnist/r-1/round_1/1/stderr.log",
        "hint": "the GPU is full: use a smaller batch",
    }
    return FailureStatus(**usual | facts)


def a_round_status(number: int, **facts: Any) -> RoundStatus:
    """Build a round that trained for ten minutes."""
    usual: dict[str, Any] = {
        "round": number,
        "nodes": 300,
        "workers": 2_400,
        "formed": "formed of 300 nodes",
        "stopped": "lost node gpu7",
        "ended": "lost node gpu7",
        "planned": False,
        "charged": False,
        "formed_s": 700.0,
        "running_s": 690.0,
        "stopped_s": 90.0,
        "ended_s": 89.0,
        "seconds": SecondsStatus(starting=10.0, training=600.0, stopping=1.0),
    }
    return RoundStatus(**usual | facts)


def an_event(number: int, kind: str, reason: str, **facts: Any) -> ApiEvent:
    """Build an event."""
    what = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in kind).strip()
    usual: dict[str, Any] = {"job": "mnist", "run": "r-1", "round": None, "node": None}
    about = {"id": f"x-{number}", "number": number, "at": 1.8e9 + number, "kind": kind, "what": what, "reason": reason}
    return ApiEvent(**usual | about | facts)


def a_job(nodes: int = 300, **facts: Any) -> PageJob:
    """Build a job that has trained for an hour, with one restart in its middle."""
    seconds = SecondsStatus(training=TRAINED_S, stalled=75.0, starting=40.0)
    usual: dict[str, Any] = {
        "job": "mnist",
        "run": "r-1",
        "state": "running",
        "reason": "all workers are started",
        "round": 1,
        "opened_s": 3_715.0,
        "state_s": 3_675.0,
        "world_size": 8 * nodes,
        "ledger": LedgerStatus(seconds=seconds, total=3_715.0, goodput=0.969),
        "progress": ProgressStatus(step=LATE_STEP, steps_per_s=3.0),
        "restarts": RestartsStatus(used=1, max=3),
        "rounds": (a_round_status(1),),
    }
    rows = tuple(map(attrgetter(*live_updates.COLUMNS), map(a_node, range(nodes))))
    table = NodeTable(columns=live_updates.COLUMNS, rows=rows)
    return PageJob(job="mnist", status=JobStatus(**usual | facts), nodes=table, series=a_series(), revision=7)


def a_series(points: int = 232) -> SeriesStatus:
    """Build an hour of points: nothing is known of the first ones, and a restart costs two in the middle."""
    broken = range(points // 2, points // 2 + 2)
    return SeriesStatus(
        span_s=16.0,
        upto_s=16.0 * points - 7.0,
        steps_per_s=tuple(None if each < 4 else 0.0 if each in broken else 3.0 for each in range(points)),
        training_s=tuple(16.0 * max(0, each - sum(other <= each for other in broken)) for each in range(points)),
        restarts=tuple(int(each > points // 2) for each in range(points)),
    )


LIST = """import('/page/jobs.js').then(({ jobList }) => {
  const list = jobList();
  document.getElementById('jobs').replaceChildren(list.element);
  document.getElementById('body').hidden = false;
  document.getElementById('body').removeAttribute('data-empty');
  list.update(JOBS, 'job-0');
})"""
"""Shows a list of jobs, and chooses `job-0`, which the list shows last."""


def show_list(page: Page, number: int) -> None:
    """Let a page show a list of so many jobs."""
    progress = {"step": 9_640, "steps_per_s": None}
    jobs = [
        {"job": f"job-{each}", "state": "running", "health": "well", "nodes": 3, "round": 1, "progress": progress}
        for each in range(number)
    ]
    page.evaluate(LIST.replace("JOBS", _json(jobs)))
