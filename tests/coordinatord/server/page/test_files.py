"""The files of the page: whole, cached with care, from no other host, and unable to run what is not theirs."""

import re
from pathlib import Path

import pytest
from aiohttp import ClientSession

from coordinatord.core.rounds.values.records import KINDS as KINDS_OF_EVENTS
from coordinatord.core.rounds.values.records import ClusterRecord
from coordinatord.server.page import KINDS
from tests.coordinatord.server.conftest import Start
from tests.support.source import ROOT

FOLDER = ROOT / "coordinatord" / "server" / "page"

FILES = sorted(path for path in FOLDER.iterdir() if path.suffix in KINDS)

MODULES = [path for path in FILES if path.suffix == ".js"]

TEXT_AS_MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function")
"""Ways in which what a worker wrote could become a part of the page."""

INLINE = re.compile(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)")

ELSEWHERE = re.compile(r"https?://(?!www\.w3\.org/2000/svg)|//[\w-]+\.\w+/")


def address(name: str) -> str:
    return "/" if name == "index.html" else f"/page/{name}"


async def test_each_file_is_served_and_never_stale(start: Start) -> None:
    async with start() as server, ClientSession() as client:
        for file in FILES:
            async with client.get(f"{server.url}{address(file.name)}") as answer:
                assert (answer.status, await answer.read()) == (200, file.read_bytes()), file.name
                assert (answer.content_type, answer.charset) == (KINDS[file.suffix], "utf-8")
                assert answer.headers["Cache-Control"] == "no-cache"
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                policy = answer.headers["Content-Security-Policy"]
                known = {"If-None-Match": answer.headers["ETag"]}
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
            assert "unsafe" not in policy
            async with client.get(f"{server.url}{address(file.name)}", headers=known) as answer:
                assert (answer.status, await answer.read()) == (304, b"")
                assert answer.headers["ETag"] == known["If-None-Match"]
            async with client.get(
                f"{server.url}{address(file.name)}", headers={"If-None-Match": '"of an older release"'}
            ) as answer:
                assert answer.status == 200


@pytest.mark.parametrize("path", ["/page/", "/page/__init__.py", "/page/../app.py", "/page/index.html", "/favicon.ico"])
async def test_nothing_else_is_served(start: Start, path: str) -> None:
    async with start() as server, ClientSession() as client, client.get(f"{server.url}{path}") as answer:
        assert answer.status == 404


def test_all_that_files_name_is_there() -> None:
    names = {file.name for file in FILES}
    for module in MODULES:
        named = set(re.findall(r'from "\./([^"]+)"', module.read_text()))
        assert named <= names, module.name
    index = (FOLDER / "index.html").read_text()
    assert set(re.findall(r'(?:src|href)="/page/([^"]+)"', index)) <= names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_makes_no_markup_of_text_and_needs_no_other_host(file: Path) -> None:
    text = file.read_text()
    assert not TEXT_AS_MARKUP.search(text)
    assert not ELSEWHERE.search(re.sub(r"(?m)^\s*//.*$", "", text))
    if file.suffix == ".html":
        assert not INLINE.search(text)


def test_each_kind_of_event_of_a_job_is_in_a_group() -> None:
    text = (FOLDER / "events.js").read_text()
    named = set(re.findall(r'"([A-Z][a-z]+[A-Z]\w+)"', text))
    of_no_job = {kind for kind, record in KINDS_OF_EVENTS.items() if issubclass(record, ClusterRecord)}
    assert named == KINDS_OF_EVENTS.keys() - of_no_job - {"JobForgotten"}, "a job that is forgotten has no page"
