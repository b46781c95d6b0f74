"""A node that is behind, and a job that stands, on the live page: shown whole at each width, among 300 nodes."""

import re

import pytest
from msgspec.structs import replace

from coordinatord.protocol.http.api import KeptStatus, ProgressStatus
from coordinatord.protocol.http.page_events import PageJob
from tests.coordinatord.server.page.conftest import Shown
from tests.support.cluster import Coordinator
from tests.support.job_views import BEHIND, LATE_STEP, a_job, a_node, show

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROW = ".scroller tbody tr:not(.spacer)"

CUT = f"""[...document.querySelectorAll('{ROW}')].slice(0, 12).flatMap((row) => {{
  const cell = row.querySelector('td.steps').getBoundingClientRect();
  const lag = row.querySelector('.behind').getBoundingClientRect();
  const ranks = row.querySelector('td.ranks');
  const name = row.querySelector('button.node bdi').getBoundingClientRect();
  const place = row.querySelector('th.node').getBoundingClientRect();
  const fits = name.right <= place.right && name.top >= place.top - 1 && name.bottom <= place.bottom + 1;
  return lag.right > cell.right || ranks.scrollWidth > ranks.clientWidth || !fits ? [row.innerText] : [];
}})"""
"""Rows of which the lag, the ranks or the name does not fit."""


def click_chip(words: str) -> str:
    return f"[...document.querySelectorAll('.nodes .chip')].find((chip) => /{words}/.test(chip.innerText)).click()"


def with_column(job: PageJob, name: str, *values: object) -> PageJob:
    """Give each node of a job its value of a field."""
    place = job.nodes.columns.index(name)
    rows = [(*row[:place], value, *row[place + 1 :]) for row, value in zip(job.nodes.rows, values, strict=True)]
    return replace(job, nodes=replace(job.nodes, rows=tuple(rows)))


@pytest.mark.parametrize("width", [390, 800, 1_280])
def test_a_straggler_among_many_is_found_by_one_click_and_shown_whole(shown: Shown, width: int) -> None:
    page = shown(a_job(), width=width, height=844)
    page.wait_for_text("1 behind", ".nodes .chips")
    assert page.text(f"{ROW} button.node") == a_node(BEHIND).node, "it comes first of itself"
    assert page.evaluate(CUT) == []
    page.evaluate(click_chip("behind"))
    assert page.evaluate(f"document.querySelectorAll('{ROW}').length") == 1
    assert f"{LATE_STEP:,}" in page.text("td.steps")
    assert page.text("td.steps .behind").endswith("154")
    arrows = "[...document.querySelectorAll('thead button')].map((b) => getComputedStyle(b, '::after').content)"
    assert all("↕" in arrow for arrow in page.evaluate(arrows)), "what can be sorted by looks like it"


def test_what_is_kept_where_is_shown_and_a_disk_that_fails(shown: Shown) -> None:
    job = a_job(nodes=3)
    assert job.status is not None
    kept = KeptStatus(step=12_300, copied=12_288, disk_step=12_000, disk_problem="node b: No space left on device")
    page = shown(replace(job, status=replace(job.status, kept=kept)))
    words = "12,300 in memory, 12,288 outlives any host, 12,000 on the disk"
    words += ", the last step is not on the disk: node b: No space left"
    page.wait_for_text(words, ".figures")


def test_releases_are_shown_and_where_they_differ_they_filter(shown: Shown) -> None:
    job = a_job(nodes=3)
    page = shown(job)
    page.wait_for_text("3, all on 0.1.0", ".nodes header")
    show(page, with_column(job, "release", "0.1.0", "0.1.0", "0.0.9"))
    page.wait_for_text("2 on 0.1.0", ".nodes .chips")
    page.evaluate(click_chip("1 on 0.0.9"))
    assert page.evaluate(f"document.querySelectorAll('{ROW}').length") == 1
    assert page.text(f"{ROW} button.node") == a_node(2).node


def test_a_chosen_node_says_where_its_logs_are(coordinator: Coordinator, shown: Shown) -> None:
    page = shown(with_column(a_job(nodes=1), "log_dir", "/var/log/mnist"))
    page.evaluate("document.querySelector('button.node').click()")
    name = a_node(0).node
    assert f"/var/log/mnist (on {name})" in page.text(".detail .facts")
    assert page.text(".detail .command code") == f"nodeclient logs --coord {coordinator.endpoint} --node={name} mnist"


def test_nodes_that_all_speak_seldom_are_not_late(shown: Shown) -> None:
    page = shown(a_job(nodes=5))
    for ages, late in (((1.0, 3.0, 5.0, 7.0, 9.0), []), ((0.1, 0.2, 0.4, 0.8, 9.0), ["9.0 s"])):
        show(page, with_column(a_job(nodes=5), "last_seen_s", *ages))
        found = page.evaluate("[...document.querySelectorAll('td[data-late]')].map((cell) => cell.innerText)")
        assert [text.replace("\xa0", " ") for text in found] == late


@pytest.mark.parametrize(
    ("health", "reason"), [("stalled", "no step for 1 min 15 s"), ("silent", "every node is silent")]
)
def test_a_job_that_stands_is_not_green(shown: Shown, health: str, reason: str) -> None:
    progress = ProgressStatus(step=LATE_STEP, steps_per_s=None, idle_s=75.0, usual_s=0.06)
    page = shown(a_job(health=health, reason=reason, progress=progress))
    page.wait_for_text(health, ".heading .badge")
    assert page.evaluate("document.querySelector('.heading .badge').dataset.tone") == "busy"
    assert page.text(".reason") == reason
    assert "a second" not in page.text(".figures")
    assert ("none for 1 min 15 s" in page.text(".figures").replace("\xa0", " ")) == (health == "stalled")
    assert page.evaluate("document.querySelector('.figures .main').dataset.none") is not None
    assert "Stalled" in page.text(".legend")


@pytest.mark.parametrize(
    ("reached", "value", "note"), [(None, "\u2013", "none reported"), (5_000, "5,000", "none yet in this round")]
)
def test_a_round_without_a_step_shows_how_far_the_run_had_come(
    shown: Shown, reached: int | None, value: str, note: str
) -> None:
    page = shown(a_job(nodes=1, state="starting", progress=ProgressStatus(step=None, reached=reached)))
    assert re.search(f"Step\\s+{value}\\s+{note}", page.text(".figures"))


@pytest.mark.parametrize(
    ("state", "world_size", "tone", "words"),
    [
        ("forming", 0, "wait", "no round (last: 4)"),
        ("starting", 8, "busy", "round 4"),
        ("left", 0, "off", "no round (last: 4)"),
    ],
)
def test_a_state_has_its_colour_and_says_whether_there_is_a_round(
    shown: Shown, state: str, world_size: int, tone: str, words: str
) -> None:
    page = shown(a_job(nodes=1, state=state, world_size=world_size, round=4))
    page.wait_for_text(state, ".heading .badge")
    assert page.evaluate("document.querySelector('.heading .badge').dataset.tone") == tone
    assert f"· {words} ·" in page.text(".meta")
