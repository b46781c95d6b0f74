"""What the live page shows of the past: charts, events, the last failure; nothing is cut or wider than the window."""

import re

import pytest

from coordinatord.protocol.http.api import EarlierRunStatus, KeptStatus, LostStatus
from tests.coordinatord.server.page.conftest import Open, Shown
from tests.support.browser import Page
from tests.support.cluster import Coordinator
from tests.support.job_views import a_failure_status, a_job, an_event, show, show_list

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
