"""Fixtures of the page's tests: a real server, a real browser, and pages that must have no errors."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coordinatord.protocol.http.api import ApiEvent
from coordinatord.protocol.http.page_events import PageJob
from tests.coordinatord.server.conftest import pytest_asyncio_loop_factories, start
from tests.support.browser import CHROMIUM, Browser, Page
from tests.support.canned_http import body, canned
from tests.support.cluster import Coordinator
from tests.support.fixtures import cluster, coordinator, own_coordinator
from tests.support.job_views import show

__all__ = ["cluster", "coordinator", "own_coordinator", "pytest_asyncio_loop_factories", "start"]

Open = Callable[..., Page]
Shown = Callable[..., Page]

UNREACHABLE = re.compile(
    r"network: Failed to load resource: net::ERR_(CONNECTION_REFUSED|CONNECTION_RESET|INCOMPLETE_CHUNKED_ENCODING) "
)
"""The errors of a browser while a coordinator is away, and the one that no page can prevent."""

EVIL = "evil.example"
"""A name that leads to this machine, as all of these names do in the tests' browser."""


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Yield one browser for all tests."""
    if CHROMIUM is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with closing(Browser(tmp_path_factory.mktemp("browser"))) as program:
        yield program


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open pages; none of them may have logged an error when the test ends."""
    pages: list[Page] = []

    def opened(url: str, **options: int | str) -> Page:
        pages.append(browser.open(url, **options))  # type: ignore[arg-type]  # they are those of `open`
        return pages[-1]

    yield opened
    for page in pages:
        page.close()
    assert [complaint for page in pages for complaint in page.complaints] == []


@pytest.fixture
def shown(coordinator: Coordinator, open_page: Open) -> Shown:
    """Return what opens a page and lets it show a job and its events."""

    def opened(job: PageJob, *events: ApiEvent, **options: int | str) -> Page:
        page = open_page(coordinator.url, **options)
        show(page, job, *events)
        return page

    return opened


@pytest.fixture
def stranger(browser: Browser) -> Iterator[Page]:
    """Open a page that is not ours."""
    with canned(body(b"<title>cats</title>", content_type="text/html")) as (endpoint, _):
        port = endpoint.rpartition(":")[2]
        with closing(browser.open(f"http://{EVIL}:{port}/")) as page:
            yield page


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    return tmp_path / "page.png"
