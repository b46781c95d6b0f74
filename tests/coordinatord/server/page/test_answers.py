"""What the page says where something else than the coordinator answers, such as a proxy before it."""

import json

import pytest

from tests.coordinatord.server.page.conftest import Shown
from tests.support.browser import Page
from tests.support.job_views import a_job

pytestmark = [pytest.mark.slow, pytest.mark.long]

ERROR_PAGE = """<html><head><style>h1 { color: red }</style><title>502 Bad Gateway</title></head>
<body><h1>Bad Gateway</h1><hr>nginx</body></html>"""

ANSWER = """void (globalThis.fetch = async () =>
  new Response(TEXT, { status: STATUS, headers: { "Content-Type": TYPE } }))"""

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


def let_answer(page: Page, status: int, kind: str, text: str) -> None:
    """Have all that the page asks from now on answered so."""
    words = {"STATUS": status, "TYPE": kind, "TEXT": text}
    answer = ANSWER
    for name, value in words.items():
        answer = answer.replace(name, json.dumps(value))
    page.evaluate(answer)


@pytest.mark.parametrize(("status", "kind", "text", "said"), CASES)
def test_what_came_in_place_of_an_answer_is_said(shown: Shown, status: int, kind: str, text: str, said: str) -> None:
    page = shown(a_job(nodes=3))
    let_answer(page, status, kind, text)
    sentence = f"hat came is no answer of a coordinator, but HTTP {said}"
    page.evaluate("document.querySelector('details:has(.stacks)').open = true")
    page.evaluate("document.querySelector('button.ask').click()")
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
    page.evaluate("document.querySelector('details:has(.stacks)').open = true")
    page.evaluate("document.querySelector('button.ask').click()")
    page.wait_for_text("The coordinator cannot be reached.", "details:has(.stacks) .failed")
    assert page.evaluate(ENTER) == "the coordinator cannot be reached"
