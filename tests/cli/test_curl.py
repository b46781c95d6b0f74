"""The lines for curl on the page of the HTTP API, as they stand there."""

import json
import re
import shlex
import shutil

import pytest

from tests.support.cluster import Coordinator
from tests.support.programs import run
from tests.support.source import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")]

LINES = re.findall(r"^curl .*", (ROOT / "docs" / "http.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", LINES)
def test_curl_is_answered_in_json(coordinator: Coordinator, line: str) -> None:
    ended = run(*shlex.split(line.replace("HOST:29400", coordinator.endpoint)))
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    is_read = answer.keys() & {"status", "events", "openapi"}
    assert is_read or answer.get("done") is True or answer["error"] in {"unknown_job", "unknown_node"}, answer


def test_there_are_lines_for_reading_following_and_asking() -> None:
    assert len(LINES) == 9
