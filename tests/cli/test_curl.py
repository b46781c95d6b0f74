"""The lines for curl on the page of the HTTP API, as they stand there."""

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinatord.protocol.access_token import Role
from tests.support.cluster import Coordinator
from tests.support.fixtures import serving
from tests.support.programs import run
from tests.support.secured import first_token
from tests.support.source import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")]

PAGE = (ROOT / "docs" / "http.md").read_text()
SETUP, _, REST = PAGE.partition("```bash\n")[2].partition("\n\n")
LINES = REST.partition("```")[0].splitlines()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what the user of these tests has as XDG_CONFIG_HOME."""
    return tmp_path_factory.mktemp("user")


@pytest.fixture(scope="module")
def secured(home: Path) -> Iterator[Coordinator]:
    """Yield a coordinator that serves only those with a token."""
    yield from serving(home)


@pytest.fixture
def setup(secured: Coordinator, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the first lines, for this coordinator, in a directory that has its certificate."""
    tokens = tmp_path / "tokens"
    tokens.write_text(
        "# of a user\n" + "".join(f"{first_token(home, role).text}\n" for role in (Role.JOIN, Role.ADMIN))
    )
    shutil.copy(secured.state / "security" / "certificate.pem", tmp_path)
    monkeypatch.chdir(tmp_path)
    return SETUP.replace("HOST:29400", secured.endpoint).replace("TOKEN_FILE", shlex.quote(str(tokens)))


@pytest.mark.parametrize("line", LINES)
def test_curl_is_answered_in_json(setup: str, line: str) -> None:
    ended = run("bash", "-ec", f"{setup}\n{line}")
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    is_read = answer.keys() & {"status", "events", "openapi"}
    assert is_read or answer.get("done") is True or answer["error"] in {"unknown_job", "unknown_node"}, answer


def test_there_are_lines_for_reading_following_and_asking() -> None:
    assert [line.split()[0] for line in LINES] == ["api"] * 9
