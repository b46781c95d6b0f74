"""What the live page shows of a job: whole at each width, of the past, of hangs, of stragglers, and of odd answers."""

import json
import re

import pytest
from msgspec.structs import replace

from coordinatord.protocol.http.api import EarlierRunStatus, KeptStatus, LaggardStatus, LostStatus, ProgressStatus
from coordinatord.protocol.http.page_events import PageJob
from tests.coordinatord.server.page.conftest import Open, Shown
from tests.support.browser import Page
from tests.support.cluster import Coordinator
from tests.support.job_views import BEHIND, LATE_STEP, a_failure_status, a_job, a_node, an_event, show, show_list

pytestmark = [pytest.mark.slow, pytest.mark.long]

EVENTS = (
    an_event(1, "NodeJoined", "host gpu1 at 10.0.0.1 with 8 workers", node="gpu1"),
    an_event(2, "RoundFormed", "formed of nodes gpu1, gpu2", round=1),
    an_event(3, "NodeLost", "silent for its whole lease", node="gpu2"),
    an_event(4, "RoundEnded", "lost node gpu2", round=1),
)

CLIPPED = """[...document.querySelectorAll('main *')].filter((element) => {
  const { overflowX, clipPath } = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  const hidden = element.closest('[hidden], [aria-hidden], .bar, .band') || !box.width || clipPath !== 'none';
  const cut = overflowX !== 'visible' && element.scrollWidth > element.clientWidth + 1;
  return !hidden && (cut || box.right > innerWidth + 1 || box.left < -1);
}).map((element) => `${element.tagName} ${element.className}: ${element.innerText}`)"""
"""Elements with more than they can show beside each other, or that lie partly outside of the window."""

OVERLAPPING = """(() => {
  const boxes = [...document.querySelectorAll('.job > :not([hidden])')].map((each) => each.getBoundingClientRect());
  return boxes.slice(1).filter((box, index) => box.top < boxes[index].bottom).length;
})()"""

UNFILLED = """(() => {
  const all = document.querySelector(".figures");
  const filled = [...all.children].reduce((sum, each) => sum + (each.offsetWidth + 1) * (each.offsetHeight + 1), 0);
  return ((all.clientWidth + 1) * (all.clientHeight + 1) - filled) / all.clientWidth;
})()"""

TOP_OF_FAILURE = "document.querySelector('.failure').getBoundingClientRect().top + scrollY"


def entries(page: Page) -> list[str]:
    found: list[str] = page.evaluate("[...document.querySelectorAll('.events li b')].map((each) => each.innerText)")
    return found


def lines(page: Page, selector: str) -> list[str]:
    """Return the lines that are read there, without those that are empty."""
    return [line for line in page.text(selector).replace("\xa0", " ").splitlines() if line]


@pytest.mark.parametrize("width", [390, 800, 1_280, 1_920])
def test_nothing_is_cut_or_wider_than_the_window(shown: Shown, width: int) -> None:
    page = shown(a_job(failure=a_failure_status()), *EVENTS, width=width, height=900)
    page.wait("document.querySelectorAll('.events li').length === 4")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(OVERLAPPING) == 0


@pytest.mark.parametrize("width", [390, 1_280])
def test_it_can_be_read_whole_that_everybody_is_let_in(coordinator: Coordinator, open_page: Open, width: int) -> None:
    page = open_page(coordinator.url, width=width, height=844)
    page.wait_for_text("open to everybody (--insecure)", "#host")
    assert page.evaluate(
        "(({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth)(document.getElementById('host'))"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [390, 1_280])
def test_the_chosen_job_is_in_sight_among_many(coordinator: Coordinator, open_page: Open, width: int) -> None:
    page = open_page(coordinator.url, width=width, height=900)
    show_list(page, 9)
    box = "document.querySelector('.jobs a[aria-current]').getBoundingClientRect()"
    page.wait(f"{box}.left >= 0 && {box}.right <= innerWidth && {box}.bottom <= innerHeight")


def test_charts_show_the_run_over_time_and_what_the_reader_points_at(shown: Shown) -> None:
    page = shown(a_job())
    assert re.match(r"Steps a second\s+3.0 a second\s+0 to 3\n", page.text(".charts")), "its scale is no second reading"
    drawn = "[...document.querySelectorAll('.chart .line')].map((line) => line.getAttribute('d'))"
    pace, goodput, restarts = page.evaluate(drawn)
    assert pace.startswith("M17.3 "), "nothing is drawn where nothing is known"
    assert re.search(r"V100H\d", pace), "there were no steps while it began again"
    assert goodput.endswith("H1000")
    assert re.fullmatch(r"M0 100(H[\d.]+|V100)+V50(H[\d.]+|V50)+", restarts)
    labels = "[...document.querySelectorAll('.chart svg')].map((each) => each.getAttribute('aria-label'))"
    assert page.evaluate(labels)[0] == "Steps a second: 3.0 a second at last, between 0.0 a second and 3.0 a second"
    page.evaluate("""(() => {
      const plot = document.querySelector('.plot');
      const { left, width, top } = plot.getBoundingClientRect();
      plot.dispatchEvent(new PointerEvent('pointermove', { clientX: left + width * 0.502, clientY: top }));
    })()""")
    assert page.text(".chart .reading") == "0.0 a second"
    assert page.text(".chart .when").startswith("at ")
    page.evaluate("document.querySelector('.plot').dispatchEvent(new PointerEvent('pointerleave'))")
    assert page.text(".chart .reading") == "3.0 a second"


@pytest.mark.parametrize("kept", [None, KeptStatus(step=314, disk_step=288)])
@pytest.mark.parametrize("width", [1_280, 390])
def test_the_figures_of_a_job_leave_no_place_empty(shown: Shown, width: int, kept: KeptStatus | None) -> None:
    page = shown(a_job(kept=kept), width=width)
    assert page.evaluate(UNFILLED) == pytest.approx(0, abs=2), "pixels that no figure fills, as rows of one pixel each"


def test_events_are_found_by_kind_and_by_words(shown: Shown) -> None:
    page = shown(a_job(), *EVENTS)
    page.wait("document.querySelectorAll('.events li').length === 4")
    assert entries(page) == ["round ended (1)", "node lost", "round formed (1)", "node joined"], "newest first"
    page.evaluate("[...document.querySelectorAll('.chip')].find((each) => each.innerText === 'Interruptions').click()")
    page.wait("document.querySelectorAll('.events li').length === 2")
    asked = page.evaluate("asked")  # by the job that is shown, and by those of other tests
    assert any("mnist/events?last=200&kind=RoundStopped%2CRoundEnded" in each for each in asked)
    page.evaluate("""(() => {
      const field = document.querySelector('input[aria-label="Find events"]');
      field.value = 'GPU2';
      field.dispatchEvent(new Event('input'));
      field.value = 'whole lease';
      field.dispatchEvent(new Event('input'));
    })()""")
    assert entries(page) == ["node lost"]
    assert "gpu2" in page.text(".events li")


def test_each_event_names_its_node_once(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(coordinator.url)
    said = (
        ("a", "host vm at 10.0.0.1 with 1 worker", "a"),
        ("gpu1-7", "host gpu1 at 10.0.0.1", "gpu1-7"),
        ("gpu1", "host gpu1-7 at 10.0.0.1", "gpu1"),
        ("(.*)", "its host is down", "(.*)"),
        ("gpu2", "node gpu2, which was drained, has left", ""),
    )
    show(
        page, a_job(), *(an_event(number, "NodeJoined", text, node=node) for number, (node, text, _) in enumerate(said))
    )
    page.wait(f"document.querySelectorAll('.events li').length === {len(said)}")
    named = page.evaluate("[...document.querySelectorAll('.events .what bdi')].map((each) => each.textContent)")
    assert named == [shown for _, _, shown in reversed(said)]


@pytest.mark.parametrize("width", [390, 1_280])
def test_a_recent_failure_is_above_the_fold_with_its_hint_and_log(
    coordinator: Coordinator, shown: Shown, width: int
) -> None:
    page = shown(a_job(failure=a_failure_status()), width=width, height=900)
    assert page.evaluate(TOP_OF_FAILURE) < 700
    assert page.text(".failure header").startswith("Round 1 failed: rank 1 on gpu2")
    assert "RuntimeError: CUDA out of memory" in page.text(".failure dl")
    assert "the GPU is full: use a smaller batch" in page.text(".failure")
    assert "/var/log/training/mnist/r-1/round_1/1/stderr.log (on gpu2)" in page.text(".failure")
    command = f"nodeclient logs --coord {coordinator.endpoint} --rank 1 --round 1 mnist"
    assert page.text(".failure .command code") == command


def test_a_command_in_a_hint_is_shown_as_one(shown: Shown) -> None:
    page = shown(a_job(failure=a_failure_status(hint="it is full (`df -h`): `ls` <b>shows</b> what fills it; 5` more")))
    page.wait_for_text("it is full (df -h): ls <b>shows</b> what fills it; 5` more", ".failure")
    codes = page.evaluate("[...document.querySelectorAll('.failure .facts code')].map((each) => each.textContent)")
    assert codes == ["df -h", "ls"]


def test_an_old_failure_comes_after_what_goes_on(shown: Shown) -> None:
    page = shown(a_job(failure=a_failure_status(age_s=3_600.0)))
    assert page.evaluate(f"{TOP_OF_FAILURE} > document.querySelector('.nodes').getBoundingClientRect().top + scrollY")


def test_lost_nodes_and_earlier_runs_are_listed(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(coordinator.url, width=390, height=900)
    lost = LostStatus(node="gpu7", host="gpu7", reason="its connection closed", round=3, lost_s=250.0)
    run = EarlierRunStatus(
        run="r-0",
        state="left",
        reason="the last node has left, as asked",
        step=5_000,
        opened_s=3_720.0,
        ended_s=7_200.0,
        exit_code=1,
        goodput=0.97,
    )
    show(page, a_job(lost=(lost,), earlier=(run,)))
    assert lines(page, ".lost li") == ["gpu7", "round 3 · 4 min 10 s ago", "its connection closed"]
    assert lines(page, ".earlier li") == [
        "r-0",
        "left",
        "ended 2 h ago",
        "the last node has left, as asked",
        "took 1 h 2 min · last at step 5,000 · 97.0 % goodput",
    ]
    assert page.evaluate("document.querySelector('.earlier .badge').dataset.tone") == "off"
    assert page.evaluate(CLIPPED) == []
    show(page, a_job())
    assert page.evaluate("[...document.querySelectorAll('.lost, .earlier')].every((each) => each.hidden)")


LATE = "rank 5 on node gpu2 is last in 92 % of collectives, 41 ms of a 410 ms step"

STANDS = "rank 1 on node gpu2 stands in get (train.py:41) for 12 s; the 2 others wait in all_reduce 1,204"


def worker(rank: int, node: str, state: str) -> dict[str, object]:
    collective = {"group": "default_pg", "number": 1204, "state": state, "operation": "gloo:all_reduce"}
    return {
        "rank": rank,
        "node": node,
        "host": node,
        "origin": "worker",
        "state": "sleeping",
        "waits_in": "futex_do_wait",
        "pid": 4_711,
        "cpus": 0.0,
        "collective": {**collective, "shape": "8 Float", "age_s": 12.0},
    }


def place(frame: str, *workers: dict[str, object]) -> dict[str, object]:
    return {"threads": [{"name": "MainThread", "frames": [frame]}], "workers": workers, "problem": ""}


STACKS = {
    "round": 3,
    "verdict": {"kind": "stuck", "sentence": STANDS},
    "groups": [
        place("<b>reduce</b> (train.py:47)", worker(0, "gpu1", "waits"), worker(2, "gpu3", "waits")),
        place("get (train.py:41)", worker(1, "gpu2", "done")),
    ],
    "notes": ["node gpu4: it is not connected"],
}

ANSWER = """void (globalThis.fetch = async (address) => {
  asked.push(address);
  return new Response(TEXT, { status: STATUS, headers: { "Content-Type": TYPE } });
})"""


def let_answer(page: Page, status: int, kind: str, text: str) -> None:
    """Have all that the page asks from now on answered so."""
    answer = ANSWER
    for name, value in {"STATUS": status, "TYPE": kind, "TEXT": text}.items():
        answer = answer.replace(name, json.dumps(value))
    page.evaluate(answer)


def ask_for_stacks(page: Page) -> None:
    page.evaluate("document.querySelector('details:has(.stacks)').open = true")
    page.evaluate("document.querySelector('button.ask').click()")


def test_a_hang_is_the_root_cause_and_a_laggard_is_named(shown: Shown) -> None:
    laggard = LaggardStatus(rank=5, node="gpu2", last=0.92, late_s=0.041, step_s=0.41, sentence=LATE)
    failure = a_failure_status(hang="stuck", how="hung: stuck", message=STANDS, error="")
    page = shown(a_job(nodes=3, laggard=laggard, failure=failure))
    page.wait_for_text(LATE, ".headline .laggard")
    page.wait_for_text("Round 1 hung: rank 1 on gpu2", ".failure header")
    page.wait_for_text(STANDS, ".failure .facts")
    two_sides = a_failure_status(hang="mismatched", hang_ranks=(0, 2), how="hung: mismatched", message=STANDS, error="")
    show(page, a_job(nodes=3, failure=two_sides))
    page.wait_for_text("Round 1 hung: ranks 0, 2", ".failure header")
    page.wait_for_text("ranks 0, 2, which wait in different collectives", ".failure .facts")
    diverged = a_failure_status(cause="divergence", how="diverged", message="replicas diverged after step 16", error="")
    show(page, a_job(nodes=3, failure=diverged))
    page.wait_for_text("Round 1 diverged: replicas are not alike", ".failure header")
    page.wait_for_text("ranks that should have the same state, and do not", ".failure .facts")
    show(page, a_job(nodes=3, unseen="a hang would not be noticed"))
    page.wait_for_text("a hang would not be noticed", ".headline")


def test_the_page_asks_where_the_workers_stand(shown: Shown) -> None:
    page = shown(a_job(nodes=3))
    assert page.evaluate("document.querySelector('.stacks').innerText") == ""
    let_answer(page, 200, "application/json", json.dumps(STACKS))
    ask_for_stacks(page)
    page.wait_for_text(f"Round 3. stuck: {STANDS}\nnode gpu4: it is not connected", ".verdict")
    page.wait_for_text("ranks 0, 2 on gpu1, gpu3", ".stacks")
    assert page.evaluate("asked.at(-1)") == "/v1/jobs/mnist/stacks"
    assert "waits in gloo:all_reduce 1,204 of default_pg (8 Float) for 12" in page.text(".stacks")
    assert "<b>reduce</b> (train.py:47)" in page.text(".stacks pre"), "it is text and no markup"
    assert "last collective: gloo:all_reduce 1,204" in page.text(".stacks > div:last-child")


def test_why_nobody_can_be_asked_is_said(shown: Shown) -> None:
    page = shown(a_job(nodes=3))
    refusal = {"code": "no_stacks", "message": "round 3 is being stopped"}
    let_answer(page, 404, "application/json", json.dumps(refusal))
    ask_for_stacks(page)
    page.wait_for_text("Round 3 is being stopped.", "details .failed")
    assert not page.evaluate("document.querySelector('button.ask').disabled")


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


ERROR_PAGE = """<html><head><style>h1 { color: red }</style><title>502 Bad Gateway</title></head>
<body><h1>Bad Gateway</h1><hr>nginx</body></html>"""

UNKNOWN = "So it is not known whether this was done: see the events."

ENTER = """import("/page/entry.js").then(({ letIn }) => {
  history.replaceState(null, "", "#enter=a-code");
  return letIn();
})"""

CASES = [
    pytest.param(
        502,
        "text/html; charset=utf-8",
        ERROR_PAGE,
        "502, text/html: “502 Bad Gateway Bad Gateway nginx”",
        id="error page",
    ),
    pytest.param(200, "text/html", "<p>Who are you?</p>", "200, text/html: “Who are you?”", id="login page"),
    pytest.param(
        503, "application/json", '{"error": "down"}', '503, application/json: “{"error": "down"}”', id="other JSON"
    ),
    pytest.param(504, "", "", "504, of no type: nothing to read", id="nothing"),
    pytest.param(500, "text/plain", "x" * 5_000, f"500, text/plain: “{'x' * 120} …”", id="a long one"),
]
"""Status, type and text of an answer, and what is said of it."""


@pytest.mark.parametrize(("status", "kind", "text", "said"), CASES)
def test_what_came_in_place_of_an_answer_is_said(shown: Shown, status: int, kind: str, text: str, said: str) -> None:
    page = shown(a_job(nodes=3))
    let_answer(page, status, kind, text)
    sentence = f"hat came is no answer of a coordinator, but HTTP {said}"
    ask_for_stacks(page)
    page.wait_for_text(f"W{sentence}.", "details:has(.stacks) .failed")
    page.evaluate("document.querySelector('button.act[aria-label=\"Restart mnist?\"]').click()")
    page.evaluate("document.querySelector('dialog input').value = 'new data'")
    page.evaluate("document.querySelector('dialog input').dispatchEvent(new Event('input'))")
    page.evaluate("document.querySelector('dialog .act').click()")
    page.wait_for_text(f"W{sentence}. {UNKNOWN}", "dialog .failed")
    assert page.evaluate("document.querySelector('dialog').open"), "it was not done"
    assert page.evaluate(ENTER) == f"w{sentence}"


def test_a_coordinator_that_gives_no_answer_cannot_be_reached(shown: Shown) -> None:
    page = shown(a_job(nodes=3))
    page.evaluate("void (globalThis.fetch = async () => { throw new TypeError('Failed to fetch'); })")
    ask_for_stacks(page)
    page.wait_for_text("The coordinator cannot be reached.", "details:has(.stacks) .failed")
    assert page.evaluate(ENTER) == "the coordinator cannot be reached"
