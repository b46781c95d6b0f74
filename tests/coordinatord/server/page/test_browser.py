"""The live page in a real browser, with real nodes: it shows, it keeps up without a reload, it survives what it shows.

Every test ends with a look at the page's errors, of which there must be none; see `conftest`.
"""

import re
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from coordinatord.server.http.live_updates import VIEWERS_MAX
from tests.coordinatord.server.page.conftest import EVIL, UNREACHABLE, Open
from tests.coordinatord.server.page.test_colours import palette
from tests.support.browser import Browser, Page
from tests.support.cluster import QUICK, Cluster, Coordinator
from tests.support.etcd import needs_etcd
from tests.support.lives import FleetProgram, Lives
from tests.support.programs import BIN, run
from tests.support.standbys import Pair, on_this_host

pytestmark = pytest.mark.slow

STEPPING = """
import signal, threading, workerlib
step, ended = 0, threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
while not ended.wait(0.02):
    step += 1
    workerlib.step(step)
"""
"""A training that does nothing but count."""

FLAGS = ("--nnodes", "1:4", "--max-restarts", "3")

HOSTILE = "<img/src=x/onerror=\"document.title='owned'\">$(id)'\"&amp;</script>"
"""What a job or a node may be called, and what a worker may write."""

RAISING = f"raise ValueError({HOSTILE!r} * 3)"

FLEET = 1_000

ROWS = "document.querySelectorAll('.scroller tbody tr:not(.spacer)').length"

ROWS_MAX = 60
"""The rows of the nodes' table that are there at a time: the visible ones and a few more."""

MUTATIONS = """new Promise((resolve) => {
  let changes = 0, first = null;
  const meta = document.querySelector('.meta');
  const watcher = new MutationObserver((records) => {
    changes += records.length;
    if (records.some((record) => meta.contains(record.target))) {
      if (first !== null) { watcher.disconnect(); resolve(changes - first); }
      else first = changes;
    }
  });
  watcher.observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
})"""
"""Counts what changes in the page from one state to the next."""


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    """Yield one coordinatord at one port, over one state directory, that may be killed and started again."""
    found = Lives(tmp_path, *QUICK)
    yield found
    found.close()


def link(coordinator: Coordinator, job: str) -> str:
    return f"{coordinator.url}/#job={job}"


def is_as_wide_as_the_window(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.long
def test_a_page_without_jobs_says_how_to_begin(own_coordinator: Callable[..., Coordinator], open_page: Open) -> None:
    coordinator = own_coordinator()
    page = open_page(coordinator.url)
    page.wait_for_text("No jobs yet")
    assert f"nodeclient join --coord {coordinator.endpoint} -- python train.py" in page.text()
    run(BIN / "nodeclient", "drain", "--coord", coordinator.endpoint, "--reason", "its fan is loud", "--ahead", "gpu7")
    page.wait_for_text("its fan is loud")
    assert f"nodeclient undrain --coord {coordinator.endpoint} gpu7" in page.text()
    edge = "document.querySelector('{}').getBoundingClientRect().{}"
    above, below = edge.format("main .empty", "bottom"), edge.format("main > .panel", "top")
    assert page.evaluate(f"{below} - {above}") >= 8, "they do not touch"
    with Cluster(coordinator, "first") as first:
        first.join("a", "--nnodes", "2")
        page.wait_for_text("waiting for nodes: 1 of 2 joined (node a)", ".reason")
        assert page.evaluate("location.hash") == "#job=first"
        run(BIN / "nodeclient", "quarantine", "--coord", coordinator.endpoint, "--reason", "its GPU is hot", "a")
        page.wait_for_text("quarantined by ")
        assert f"nodeclient pardon --coord {coordinator.endpoint} {socket.gethostname()}" in page.text()


def test_it_keeps_up_without_a_reload_when_a_node_dies(cluster: Cluster, open_page: Open) -> None:
    for name in "ab":
        cluster.join(name, *FLAGS, command=(sys.executable, "-c", STEPPING))
    page = open_page(link(cluster.coordinator, cluster.job))
    page.evaluate("window.mark = 'the same'")
    page.wait("/Workers\\s+2\\s/.test(document.querySelector('.figures')?.innerText)")
    page.wait("[...document.querySelectorAll('td.steps')].every((cell) => /^[\\d,]+/.test(cell.innerText.trim()))")
    assert page.evaluate(ROWS) == 2
    before = page.text(".figures")
    page.wait(f"document.querySelector('.figures').innerText !== {before!r}")
    last = page.text(".rounds h3")
    cluster.nodes[1].process.kill()
    page.wait_for_text("lost node b", ".rounds")
    page.wait(f"{ROWS} === 1")
    page.wait_for_text("running", ".heading .badge")
    page.wait_for_text("node lost", ".events")
    page.wait("document.querySelector('.chart .line').getAttribute('d')")
    number = int(page.text(".rounds h3").removeprefix("Round "))
    assert number == int(last.removeprefix("Round ")) + 1
    assert page.evaluate("document.querySelectorAll('.band > div').length") == number
    assert page.evaluate("window.mark") == "the same"
    assert re.search(r"Detecting\n[\d.]+\s%", page.text(".legend"))
    assert page.evaluate("document.title") == f"{cluster.job}: running"


@pytest.mark.long
def test_it_survives_a_restart_of_the_coordinator(lives: Lives, open_page: Open) -> None:
    with Cluster(lives.now, f"job-{secrets.token_hex(4)}") as nodes:
        nodes.join("a")
        nodes.await_round(1)
        page = open_page(link(lives.now, nodes.job))
        page.evaluate("window.mark = 'the same'")
        page.wait_for_text("running", ".heading .badge")
        lives.kill()
        page.wait_for_text("The coordinator cannot be reached since", "#banner")
        assert page.text("#link") == "no connection"
        coordinator = lives.start()
        page.wait("document.getElementById('banner').hidden")
        page.wait_for_text("live", "#link")
        nodes.join("b", "--nnodes", "1:")
        coordinator.await_job(nodes.job, round=2, state="running")
        page.wait_for_text("Round 2", ".rounds")
        page.wait(f"{ROWS} === 2")
        assert page.evaluate("window.mark") == "the same"
        page.complaints[:] = [complaint for complaint in page.complaints if not UNREACHABLE.match(complaint)]


@pytest.mark.long
def test_a_thousand_nodes_are_a_few_rows(
    own_coordinator: Callable[..., Coordinator], open_page: Open, picture: Path
) -> None:
    # A node is lost after five heartbeats: with the default, a busy machine would lose some of a thousand.
    coordinator = own_coordinator("--heartbeat", "10")
    with FleetProgram(coordinator, "big", FLEET):
        page = open_page(link(coordinator, "big"))
        page.wait_for_text("running", ".heading .badge")
        page.wait_for_text("1,000", ".nodes header")
        assert 10 < page.evaluate(ROWS) < ROWS_MAX
        page.evaluate("document.querySelector('.scroller').scrollTop = 1e9")
        page.wait_for_text("sim-0999", ".scroller")
        assert page.evaluate(ROWS) < ROWS_MAX
        assert page.evaluate(MUTATIONS) < 10 * ROWS_MAX
        page.evaluate("""(() => {
          const filter = document.querySelector('.nodes input');
          filter.value = '617';
          filter.dispatchEvent(new Event('input'));
        })()""")
        page.wait_for_text("sim-0617", ".scroller")
        page.picture(picture)
        assert picture.read_bytes().startswith(b"\x89PNG")
        page.resize(390, 844, mobile=True)
        assert is_as_wide_as_the_window(page)


def test_hostile_names_and_words_do_nothing(coordinator: Coordinator, open_page: Open) -> None:
    with Cluster(coordinator, HOSTILE) as hostile:
        hostile.join(HOSTILE, command=(sys.executable, "-c", RAISING)).wait()
        page = open_page(coordinator.url)
        page.evaluate(f"location.hash = 'job=' + encodeURIComponent({HOSTILE!r})")
        page.wait_for_text(HOSTILE, ".heading h1")
        page.wait_for_text(f"ValueError: {HOSTILE}", ".failure pre")
        page.evaluate("document.querySelector('.commands').closest('details').open = true")
        quoted = HOSTILE.replace("'", "'\\''")
        assert f"report --coord {coordinator.endpoint} '{quoted}'" in page.text(".commands")
        assert page.evaluate("document.querySelectorAll('img').length") == 1
        assert "owned" not in page.evaluate("document.title").replace(HOSTILE, "")


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colours_are_those_of_the_readers_scheme(coordinator: Coordinator, open_page: Open, scheme: str) -> None:
    page = open_page(coordinator.url, scheme=scheme)
    shown = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--text')")
    assert shown == palette(scheme)["text"]


@pytest.mark.long
def test_each_job_has_an_address_and_the_back_button_works(
    own_coordinator: Callable[..., Coordinator], open_page: Open
) -> None:
    coordinator = own_coordinator()
    jobs = [Cluster(coordinator, name) for name in ("one", "team/two")]
    try:
        for job in jobs:
            job.join("a", "--nnodes", "2")
        page = open_page(link(coordinator, "one"), width=390, height=844)
        page.wait_for_text("waiting for nodes: 1 of 2 joined", ".reason")
        assert is_as_wide_as_the_window(page)
        page.wait_for_text("team/two", ".jobs")
        page.evaluate("[...document.querySelectorAll('.jobs a')].find((a) => a.innerText.includes('team/two')).click()")
        page.wait_for_text("team/two", "h1")
        assert page.evaluate("location.hash") == "#job=team%2Ftwo"
        assert page.text("[aria-current]").startswith("team/two")
        page.evaluate("history.back()")
        page.wait("document.querySelector('h1')?.innerText === 'one'")
        page.evaluate("location.hash = 'job=nosuch'")
        page.wait_for_text("No job nosuch is known here")
    finally:
        for job in jobs:
            job.close()


@pytest.mark.long
def test_a_page_that_is_one_too_many_says_so_and_waits(
    own_coordinator: Callable[..., Coordinator], open_page: Open
) -> None:
    coordinator = own_coordinator()
    with ExitStack() as others:
        for _ in range(VIEWERS_MAX):
            viewer = others.enter_context(socket.create_connection(("127.0.0.1", coordinator.port)))
            viewer.sendall(b"GET /v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
            assert viewer.recv(len(b"HTTP/1.1 200")) == b"HTTP/1.1 200"
        page = open_page(coordinator.url)
        page.wait_for_text(f"{VIEWERS_MAX} pages are open already", "#banner")
    page.wait_for_text("No jobs yet")
    assert page.evaluate("document.getElementById('banner').hidden")
    page.complaints[:] = [complaint for complaint in page.complaints if "status of 503" not in complaint]


JOIN = """new Promise((resolve) => {{
  const socket = new WebSocket("ws://{endpoint}/v1/session");
  socket.onopen = () => resolve("it may say what it likes");
  socket.onerror = () => resolve("turned away");
}})"""

DRAIN = """fetch("http://{endpoint}/v1/nodes/a/drain", {{ method: "POST", body: '{{"by": "me"}}', mode: "no-cors",
  headers: {{ "Content-Type": "text/plain" }} }}).then((answer) => answer.type)"""

READ = """fetch("/v1/jobs", {{ headers: {headers}, referrerPolicy: "no-referrer" }})
  .then(async (answer) => [answer.status, await answer.text()])"""


def test_a_page_of_somebody_else_can_neither_join_a_job_nor_ask_for_anything(
    coordinator: Coordinator, stranger: Page
) -> None:
    assert stranger.evaluate(JOIN.format(endpoint=coordinator.endpoint)) == "turned away"
    coordinator.await_line("refused: a web page sent .*origin=http://evil.example:.* path=/v1/session")
    assert stranger.evaluate(DRAIN.format(endpoint=coordinator.endpoint)) == "opaque"
    coordinator.await_line("refused: a web page sent .* path=/v1/nodes/a/drain")
    assert coordinator.get("/v1/jobs")["drained"] == []


def test_a_page_whose_name_has_come_to_mean_our_address_reads_nothing(
    coordinator: Coordinator, browser: Browser
) -> None:
    with closing(browser.open(f"http://{EVIL}:{coordinator.port}/")) as page:
        assert f"does not know the name {EVIL} as its own" in page.text()
        assert "--allowed-hosts" in page.text()
        for headers in ("{}", '{ "User-Agent": "curl/8", "Accept-Language": "", "Accept": "application/json" }'):
            status, text = page.evaluate(READ.format(headers=headers))
            assert (status, "foreign_name" in text) == (403, True)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Start two coordinators, which outlive the page."""
    with ExitStack() as stack:
        yield on_this_host(stack, tmp_path)


@pytest.mark.long
@needs_etcd
def test_who_leads_and_who_stands_by_is_shown_and_kept_up(pair: Pair, open_page: Open) -> None:
    leader, standby = pair.addresses
    page = open_page(f"http://{leader}/")
    page.wait_for_text(f"{leader} leads, standing by: {standby}", "#host")
    assert pair.coordinators[1].stop() == 0
    page.wait_for_text(f"{leader} leads, no coordinator stands by", "#host")
