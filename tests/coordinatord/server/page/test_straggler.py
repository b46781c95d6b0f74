"""A node that is behind, and a job that stands, on the live page: shown whole at each width, among 300 nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinatord.core.values.time_ledger import Activity
from tests.coordinatord.server.page.conftest import Open
from tests.support.cluster import Coordinator

pytestmark = pytest.mark.slow

NODES = 300
BEHIND = "gpu-rack07-node041.internal"

COLUMNS = (
    *("node", "host", "address", "state", "reason", "drained"),
    *("group_rank", "ranks", "last_seen_s", "steps", "step_age_s"),
)

SHOW = """import('/page/job.js').then(({ jobPage }) => {
  const page = jobPage();
  const body = document.getElementById('body').cloneNode(true);
  body.hidden = false;
  body.removeAttribute('data-empty');
  body.querySelector('main').replaceChildren(page.element);
  document.body.replaceChildren(body);
  page.update(VIEW, 0);
})"""
"""Shows a view as if it had come from the stream."""

CUT = """[...document.querySelectorAll('.scroller tbody tr:not(.spacer)')].slice(0, 12).flatMap((row) => {
  const cell = row.querySelector('td.steps').getBoundingClientRect();
  const lag = row.querySelector('.behind').getBoundingClientRect();
  const name = row.querySelector('button.node bdi').getBoundingClientRect();
  const place = row.querySelector('th.node').getBoundingClientRect();
  const fits = name.right <= place.right && name.top >= place.top - 1 && name.bottom <= place.bottom + 1;
  return lag.right > cell.right || !fits
    ? [row.innerText] : [];
})"""
"""Rows of which the lag or the name does not fit."""


def a_row(number: int) -> list[Any]:
    """Return a node of eight workers; one is behind."""
    name = BEHIND if number == 41 else f"gpu{number:03}"
    step = 12_182 if number == 41 else 12_336
    ranks = list(range(8 * number, 8 * number + 8))
    about = (name, name, f"10.0.{number // 256}.{number % 256}", "running", "its workers are running", False)
    return [*about, number, ranks, 0.4, [step] * 8, 0.2]


def a_view(**facts: Any) -> dict[str, Any]:
    """Return a job as the stream has it."""
    seconds = dict.fromkeys(Activity, 0.0) | {
        Activity.TRAINING: 3_600.0,
        Activity.STALLED: 75.0,
        Activity.STARTING: 40.0,
    }
    usual: dict[str, Any] = {
        "job": "mnist",
        "run": "r-1",
        "state": "running",
        "health": "well",
        "reason": "all workers are started",
        "round": 1,
        "opened_s": 3_715.0,
        "state_s": 3_675.0,
        "world_size": 8 * NODES,
        "spares": 0,
        "ledger": {"seconds": seconds, "total": 3_715.0, "goodput": 0.969},
        "progress": {"step": 12_182, "steps_per_s": 3.0},
        "restarts": {"used": 0, "max": 3},
        "missing": {"count": 0, "nodes": []},
        "failure": None,
        "rounds": [],
    }
    nodes = {"columns": list(COLUMNS), "rows": [a_row(number) for number in range(NODES)]}
    return {"job": "mnist", "status": usual | facts, "nodes": nodes}


@pytest.mark.parametrize("width", [390, 800, 1_280])
def test_a_straggler_among_many_is_found_by_one_click_and_told_whole(
    coordinator: Coordinator, open_page: Open, width: int
) -> None:
    page = open_page(coordinator.url, width=width, height=844)
    page.evaluate(SHOW.replace("VIEW", json.dumps(a_view())))
    page.wait_for_text("1 behind", ".chips")
    page.evaluate("[...document.querySelectorAll('.chips .chip')].find((c) => /behind/.test(c.innerText)).click()")
    assert page.evaluate("document.querySelectorAll('.scroller tbody tr:not(.spacer)').length") == 1
    assert page.text(".scroller tbody tr:not(.spacer) button.node") == BEHIND
    assert "12,182" in page.text("td.steps")
    assert page.text("td.steps .behind").endswith("154")
    assert page.evaluate(CUT) == []
    arrows = "[...document.querySelectorAll('thead button')].map((b) => getComputedStyle(b, '::after').content)"
    assert all("↕" in arrow for arrow in page.evaluate(arrows)), "what can be sorted by looks like it"


@pytest.mark.parametrize(
    ("health", "reason"), [("stalled", "no step for 1 min 15 s"), ("silent", "every node is silent")]
)
def test_a_job_that_stands_is_not_green(coordinator: Coordinator, open_page: Open, health: str, reason: str) -> None:
    page = open_page(coordinator.url)
    view = a_view(health=health, reason=reason, progress={"step": 12_182, "steps_per_s": None})
    page.evaluate(SHOW.replace("VIEW", json.dumps(view)))
    page.wait_for_text(health, ".heading .badge")
    assert page.evaluate("document.querySelector('.heading .badge').dataset.tone") == "busy"
    assert page.text(".reason") == reason
    assert "a second" not in page.text(".figures")
    assert page.evaluate("document.querySelector('.figures .main').dataset.none") is not None
    assert "Stalled" in page.text(".legend")
