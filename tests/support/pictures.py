"""Makes the pictures of the docs from one run of the demo. `make pictures` takes two minutes, and needs chromium.

`demo.svg` has what the demo prints, as an animation. `page.png`, `page-dark.png` and `page-phone.png` show the live
page meanwhile.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable
from contextlib import closing
from html import escape
from pathlib import Path

from tests.support.browser import CHROMIUM, Browser, Page
from tests.support.programs import Program, clean_environ

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

SECRET = re.compile(r"#enter=\w+")
"""The part of a link that lets in who has it, once."""

GAP_S_MAX = 1.5
"""The longest pause of the animation. The numbers at the left show how long each really was."""

WITHIN_S = 300.0
"""How long the demo may take: eight times what it takes on two idle cores."""

LETTER, LINE = 8.2, 19
"""The width of a letter and the height of a line, in pixels, of a monospaced font of 13.5 pixels."""

STYLE = """
  rect { fill: #16191d }
  text { font: 13.5px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #d7dbe0; white-space: pre;
         animation: appear 0.1s both }
  .deed { fill: #ffb454; font-weight: bold }
  .good { fill: #7fd6a8 }
  @keyframes appear { from { opacity: 0 } }
  @media (prefers-reduced-motion) { text { animation: none } }
"""


def animation(lines: Iterable[str]) -> str:
    """Return an SVG in which the lines of the demo appear one after the other, and then stay."""
    texts, shown_at, before, widest = [], 0.5, 0.0, 0
    for number, line in enumerate(lines, 1):
        if stamp := re.match(r" *(\d+\.\d) s  ", line):
            at = float(stamp[1])
            shown_at, before = shown_at + min(at - before, GAP_S_MAX), at
        kind = " class='deed'" if "==>" in line else " class='good'" if "went on after" in line or line == "OK" else ""
        widest = max(widest, len(line))
        where = f"x='16' y='{number * LINE + 12}' style='animation-delay: {shown_at:.1f}s'"
        texts.append(f"<text {where}{kind}>{escape(line, quote=False)}</text>")
    width, height = round(widest * LETTER) + 32, len(texts) * LINE + 32
    head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}'>"
    frame = f"<rect width='{width}' height='{height}' rx='8'/>"
    return "\n".join([head, f"<style>{STYLE}</style>", frame, *texts, "</svg>", ""])


def take_pictures(page: Page) -> None:
    """Take pictures of a page for the docs."""
    page.wait_for_text("a second, resumed")  # the charts have something to show by then
    page.picture(DOCS / "page.png")
    page.prefer("dark")
    page.picture(DOCS / "page-dark.png")
    page.prefer("light")
    page.resize(390, 844, mobile=True)
    page.picture(DOCS / "page-phone.png")


def main() -> None:
    """Run the demo and make the pictures. Exits with a line that says what is missing, if anything is."""
    if CHROMIUM is None:
        sys.exit("pictures: they need a browser: apt-get install chromium")
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Browser(Path(folder))) as browser,
        Program(sys.executable, ROOT / "examples" / "demo.py", environ=clean_environ(COORDINATORD_INSECURE="")) as demo,
    ):
        link = demo.await_line(r"https://\S+")[0]
        page = browser.open("about:blank", height=1_040)
        page.command("Security.setIgnoreCertificateErrors", ignore=True)
        page.go(link)
        demo.await_line("join the job disturbed", WITHIN_S)
        page.go(SECRET.sub("#job=disturbed", link))
        demo.await_line("==> node-a added back", WITHIN_S)
        take_pictures(page)
        if demo.wait(WITHIN_S):
            sys.exit(f"{demo.output}\npictures: the demo has failed")
        (DOCS / "demo.svg").write_text(animation(SECRET.sub("", line) for line in demo.lines))


if __name__ == "__main__":
    main()
