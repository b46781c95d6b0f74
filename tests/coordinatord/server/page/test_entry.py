"""The page of a coordinator as it is by default, in a real browser: it opens by a link, and acts."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from nodeclient.host.ports import PortReservation
from tests.coordinatord.server.page.conftest import UNREACHABLE, Open
from tests.support.browser import Browser, Page
from tests.support.places import Place
from tests.support.programs import BIN, Program, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("trusting")]


POST_STOP = """fetch("/v1/jobs/j/stop", { method: "POST", body: '{"by": "page"}',
  headers: { "Content-Type": "application/json", Accept: "application/json" } })
  .then(async (answer) => [answer.status, (await answer.json()).error])"""

ASK = """fetch("{url}{path}", {{ method: "{method}", mode: "{mode}", credentials: "include",
  headers: {{ "Content-Type": "text/plain" }}, ...("{method}" === "POST" ? {{ body: '{{"by": "me"}}' }} : {{}}) }})
  .then((answer) => answer.type, () => "kept away")"""

EXPECTED = re.compile("status of 40[13]|ERR_INCOMPLETE_CHUNKED_ENCODING")

PLACE_OF_THE_WAY_IN = """(() => {
  const { left, right } = document.querySelector(".empty").getBoundingClientRect();
  const code = document.querySelector(".empty code");
  return [left, innerWidth - right, code.scrollWidth - code.clientWidth];
})()"""

FRAME = """void document.body.append(Object.assign(document.createElement("iframe"), {{ src: "{url}/" }}))"""


class Guarded(Place):
    """A coordinator for those with a token, at a port that is kept for another one, and what its user does there."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder, stack)
        self.endpoint = f"127.0.0.1:{stack.enter_context(closing(PortReservation())).port}"
        self.url = f"https://{self.endpoint}"
        self.program = self.begin()

    def begin(self) -> Program:
        """Start the coordinator, or start it again."""
        host, _, port = self.endpoint.partition(":")
        program = self.start(BIN / "coordinatord", "--host", host, "--port", port, "--state-dir", self.state)
        program.await_line("coordinatord listening on https://")
        return program

    def begin_node(self) -> None:
        """Start the node `gpu7` of the job `j`, whose worker waits."""
        node = self.node("--node-id", "gpu7", "--max-restarts", "3", script="import time; time.sleep(600)")
        node.await_line("starting round 1")

    def await_event(self, reason: str) -> None:
        """Wait for an event with this reason."""
        wait_until(f"{reason!r} in the events", lambda: reason in self.ask("events").stdout)

    def link(self, *flags: str) -> str:
        """Return what `nodeclient page` prints."""
        done = self.ask("page", *flags)
        assert "works once, within 5 minutes" in done.stderr
        return done.stdout.strip()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    with ExitStack() as stack:
        yield Guarded(tmp_path, stack)


@pytest.fixture
def trusting(browser: Browser) -> Iterator[Browser]:
    """Have the browser go on as a person does who has compared the fingerprint."""
    browser.command("Security.setIgnoreCertificateErrors", ignore=True)
    yield browser
    browser.command("Security.setIgnoreCertificateErrors", ignore=False)


def locked(page: Page) -> None:
    page.wait_for_text("This page wants a token")
    forgive(page)


def forgive(page: Page) -> None:
    """Drop what the browser complains of: answers that say no, and a stream that was ended."""
    wait_until("what the browser says of the answer", lambda: page.complaints)
    page.complaints[:] = [complaint for complaint in page.complaints if not EXPECTED.search(complaint)]


def press(page: Page, title: str) -> None:
    """Press the button that asks for an act, and see what the page asks."""
    button = f"document.querySelector({json.dumps(f'button.act[aria-label={json.dumps(title)}]')})"
    page.wait(f"{button} !== null")
    page.evaluate(f"({button}.closest('details') ?? {{}}).open = true")
    page.evaluate(f"{button}.click()")
    page.wait_for_text(title, "dialog")


def confirm(page: Page, reason: str) -> None:
    """Give a reason and confirm."""
    page.evaluate(
        f"(() => {{ const reason = document.querySelector('dialog input'); reason.value = {json.dumps(reason)};"
        " reason.dispatchEvent(new Event('input')); document.querySelector('dialog .act').click(); })()"
    )
    page.wait("document.querySelector('dialog').open === false")


@pytest.mark.long
def test_a_link_opens_the_page_once(guarded: Guarded, open_page: Open) -> None:
    link = guarded.link()
    page = open_page(guarded.url)
    locked(page)
    page.wait_for_text(f"nodeclient page --coord {guarded.endpoint}")
    page.evaluate(f"void (location.href = {json.dumps(link)})")
    page.wait_for_text("No jobs yet")
    assert page.evaluate("location.href") == f"{guarded.url}/"
    assert page.evaluate("document.cookie") == "", "no script can read it"
    page.evaluate("location.reload()")
    page.wait_for_text("No jobs yet")
    again = open_page(link)
    again.wait_for_text("No jobs yet")
    forgive(again)
    page.command("Network.clearBrowserCookies")
    stale = open_page(link)
    locked(stale)
    stale.wait_for_text("This link was used already, or is too old")


@pytest.mark.long
@pytest.mark.parametrize("width", [1_280, 390])
def test_the_way_in_is_in_the_middle_and_whole(guarded: Guarded, open_page: Open, width: int) -> None:
    page = open_page(guarded.url, width=width)
    locked(page)
    left, right, cut = page.evaluate(PLACE_OF_THE_WAY_IN)
    assert left == pytest.approx(right, abs=1), "pixels to the edges"
    assert cut == 0, "pixels of the command that are seen only by scrolling"


@pytest.mark.long
def test_a_page_that_was_let_in_goes_on_when_the_coordinator_is_back(guarded: Guarded, open_page: Open) -> None:
    page = open_page(guarded.link())
    page.wait_for_text("live", "#link")
    page.evaluate("window.mark = 'the same'")
    guarded.program.process.kill()
    guarded.program.close()
    page.wait_for_text("no connection", "#link")
    again = guarded.begin()
    page.wait_for_text("live", "#link")
    page.wait_for_text("No jobs yet")
    assert page.evaluate("window.mark") == "the same"
    assert "not let in" not in again.output
    page.complaints[:] = [complaint for complaint in page.complaints if not UNREACHABLE.match(complaint)]


@pytest.mark.long
def test_what_a_session_shows_ends_with_its_token(guarded: Guarded, open_page: Open) -> None:
    page = open_page(guarded.link())
    page.wait_for_text("No jobs yet")
    guarded.token("revoke", "first-admin")
    locked(page)


def test_the_page_acts_after_a_confirmation_with_a_reason(guarded: Guarded, open_page: Open) -> None:
    guarded.begin_node()
    page = open_page(guarded.link())
    page.wait_for_text("Act on this job")
    press(page, "Restart j?")
    assert page.evaluate("document.querySelector('dialog .act').disabled"), "without a reason"
    confirm(page, "new <b>data</b>")
    guarded.await_event("by the page (token first-admin): new <b>data</b>")
    page.evaluate("document.querySelector('button.node').click()")
    press(page, "Drain gpu7?")
    confirm(page, "its fan")
    guarded.await_event("gpu7 drained by the page (token first-admin): its fan")
    page.wait_for_text("Drained nodes")
    press(page, "Let gpu7 in again?")
    confirm(page, "a new fan")
    page.wait("!document.body.innerText.includes('Drained nodes')")


@pytest.mark.long
def test_who_may_only_read_has_nothing_to_press(guarded: Guarded, open_page: Open, tmp_path: Path) -> None:
    guarded.begin_node()
    guarded.token("new", "--role", "read", "--output", str(tmp_path / "read"))
    page = open_page(guarded.link("--token-file", str(tmp_path / "read")))
    page.wait_for_text("Act on this job")
    assert "nodeclient stacks --coord " in page.evaluate("document.querySelector('.commands').textContent")
    assert page.evaluate("[...document.querySelectorAll('.act')].every((each) => each.offsetParent === null)")
    assert page.evaluate(POST_STOP) == [403, "role"]
    forgive(page)


@pytest.mark.long
def test_other_pages_can_neither_ask_nor_frame(guarded: Guarded, open_page: Open, stranger: Page) -> None:
    page = open_page(guarded.link())
    page.wait_for_text("No jobs yet")
    for path, method, mode in (
        ("/v1/nodes/a/drain", "POST", "no-cors"),
        ("/v1/nodes/a/drain", "POST", "cors"),
        ("/v1/jobs", "GET", "cors"),
        ("/page/app.js", "GET", "no-cors"),
    ):
        asked = ASK.format(url=guarded.url, path=path, method=method, mode=mode)
        assert stranger.evaluate(asked) in {"opaque", "kept away"}, (path, mode)
    guarded.program.await_line("refused: a web page sent .*origin=http://evil.example:.* path=/v1/nodes/a/drain")
    stranger.evaluate(FRAME.format(url=guarded.url))
    wait_until("what the browser says of the frame", lambda: "frame-ancestors" in " ".join(stranger.complaints))
    assert json.loads(guarded.ask("status", "--json").stdout)["drained"] == []
