"""A round that hung, a worker that comes late, and where the workers stand, on the live page."""

import json

import pytest

from coordinatord.protocol.http.api import LaggardStatus
from tests.coordinatord.server.page.conftest import Shown
from tests.support.job_views import a_failure_status, a_job, show

pytestmark = [pytest.mark.slow, pytest.mark.long]

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

ANSWER = """globalThis.fetch = async (address) => {
  asked.push(address);
  return new Response(JSON.stringify(BODY), { status: STATUS });
}"""


def answers(status: int, body: object) -> str:
    """Return what lets the page get this answer to all that it asks."""
    return ANSWER.replace("BODY", json.dumps(body)).replace("STATUS", str(status))


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
    page.evaluate(answers(200, STACKS))
    page.evaluate("document.querySelector('details:has(.stacks)').open = true")
    page.evaluate("document.querySelector('button.ask').click()")
    page.wait_for_text(f"Round 3. stuck: {STANDS}\nnode gpu4: it is not connected", ".verdict")
    page.wait_for_text("ranks 0, 2 on gpu1, gpu3", ".stacks")
    assert page.evaluate("asked.at(-1)") == "/v1/jobs/mnist/stacks"
    assert "waits in gloo:all_reduce 1,204 of default_pg (8 Float) for 12" in page.text(".stacks")
    assert "<b>reduce</b> (train.py:47)" in page.text(".stacks pre"), "it is text and no markup"
    assert "last collective: gloo:all_reduce 1,204" in page.text(".stacks > div:last-child")


def test_why_nobody_can_be_asked_is_said(shown: Shown) -> None:
    page = shown(a_job(nodes=3))
    page.evaluate(answers(404, {"code": "no_stacks", "message": "round 3 is being stopped"}))
    page.evaluate("document.querySelector('details:has(.stacks)').open = true")
    page.evaluate("document.querySelector('button.ask').click()")
    page.wait_for_text("Round 3 is being stopped.", "details .failed")
    assert not page.evaluate("document.querySelector('button.ask').disabled")
