"""The page of a coordinator as it is by default, in a real browser: it opens by a link, and by nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.coordinatord.server.page.conftest import Open
from tests.support.browser import Browser, Page
from tests.support.programs import BIN, Program, clean_environ, run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("trusting")]


class Guarded:
    """A coordinator for those with a token, and what its user does there."""

    def __init__(self, folder: Path) -> None:
        self.environ = clean_environ(COORDINATORD_INSECURE="", XDG_CONFIG_HOME=str(folder / "config"))
        where = ("--host", "127.0.0.1", "--port", "0", "--state-dir", folder / "state")
        self.program = Program(BIN / "coordinatord", *where, environ=self.environ)
        self.url = self.program.await_line(r"coordinatord listening on (https://\S+)")[1]
        self.endpoint = self.url.removeprefix("https://")

    def link(self) -> str:
        """Return what `nodeclient page` prints."""
        done = run(BIN / "nodeclient", "page", "--coord", self.endpoint, environ=self.environ)
        assert done.returncode == 0, done.stderr
        assert "works once, within 5 minutes" in done.stderr
        return done.stdout.strip()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(tmp_path)
    yield made
    made.program.close()


@pytest.fixture
def trusting(browser: Browser) -> Iterator[Browser]:
    """Have the browser go on as a person does who has compared the fingerprint."""
    browser.command("Security.setIgnoreCertificateErrors", ignore=True)
    yield browser
    browser.command("Security.setIgnoreCertificateErrors", ignore=False)


def locked(page: Page) -> None:
    """Wait until the page says that it is not let in."""
    page.wait_for_text("This page wants a token")
    forgive(page)


def forgive(page: Page) -> None:
    """Drop what the browser complains of: answers that say no, and a stream that was ended."""
    page.complaints[:] = [one for one in page.complaints if "status of 401" not in one and "INCOMPLETE" not in one]


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


def test_what_a_session_shows_ends_with_its_token(guarded: Guarded, open_page: Open) -> None:
    page = open_page(guarded.link())
    page.wait_for_text("No jobs yet")
    state = guarded.program.command.partition("--state-dir ")[2]
    revoke = ("coordinatord", "token", "revoke", "first-admin", "--state-dir", state)
    assert run(BIN / revoke[0], *revoke[1:], environ=guarded.environ).returncode == 0
    locked(page)
