"""The live page names the coordinator that leads and those that stand by."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.coordinatord.server.page.conftest import Open
from tests.support.etcd import needs_etcd
from tests.support.standbys import Pair, on_this_host

pytestmark = [pytest.mark.slow, pytest.mark.long, needs_etcd]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Start two coordinators, which outlive the page."""
    with ExitStack() as stack:
        yield on_this_host(stack, tmp_path)


def test_who_leads_and_who_stands_by_is_shown_and_kept_up(pair: Pair, open_page: Open) -> None:
    leader, standby = pair.addresses
    page = open_page(f"http://{leader}/")
    page.wait_for_text(f"{leader} leads, standing by: {standby}", "#host")
    assert pair.coordinators[1].stop() == 0
    page.wait_for_text(f"{leader} leads, no coordinator stands by", "#host")
