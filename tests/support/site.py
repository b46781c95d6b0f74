"""Stages the pages of the site for Zensical, which builds it: `make docs`. `zensical.toml` lists them.

A page keeps its path, so that a link to another one holds. A link to any other file leads to where the source is
published, for which Zensical cannot see whether the file is there. Pictures of `docs` come along.
"""

import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from coordinatord.runtime import PAGES
from tests.support.pages import LINK, resolved
from tests.support.source import ROOT

CONFIG = ROOT / "zensical.toml"
DOCS = ROOT / "docs"


def listed() -> list[str]:
    """Return the paths of the site's pages, from the root of the repository, in the order of its navigation."""
    return list(_paths(_project()["nav"]))


def stage() -> None:
    """Write the pages of the site into the directory that the configuration names; exit if a link leads nowhere."""
    staged = ROOT / _project()["docs_dir"]
    shutil.rmtree(staged, ignore_errors=True)
    pages = listed()
    pictures = [str(picture.relative_to(ROOT)) for picture in (*DOCS.glob("*.png"), *DOCS.glob("*.svg"))]
    present = {*pages, *pictures}
    for path in present:
        (staged / path).parent.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        shutil.copyfile(ROOT / picture, staged / picture)
    for page in pages:
        (staged / page).write_text(_with_links((ROOT / page).read_text(), PurePosixPath(page), present))


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(CONFIG.read_text())["project"]
    return project


def _paths(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _paths(part)


def _with_links(text: str, page: PurePosixPath, present: set[str]) -> str:
    """Return a page's text, with links that hold where only `present` is."""

    def address(link: re.Match[str]) -> str:
        path, hash_sign, anchor = link[1].partition("#")
        if "://" in path or (target := resolved(page, path)) in present:
            return link[0]
        if not (ROOT / target).exists():
            sys.exit(f"{page} links to {target}, which does not exist")
        return f"]({PAGES}/{target}{hash_sign}{anchor})"

    return LINK.sub(address, text)


if __name__ == "__main__":
    stage()
