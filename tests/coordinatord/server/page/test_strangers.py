"""Pages of somebody else, in a real browser: what they can do to a coordinator, and what they can read of it."""

from contextlib import closing

import pytest

from tests.coordinatord.server.page.conftest import EVIL
from tests.support.browser import Browser, Page
from tests.support.cluster import Coordinator

pytestmark = pytest.mark.slow

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
