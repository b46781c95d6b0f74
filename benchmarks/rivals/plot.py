"""Draws the steps of each launcher over time, as an SVG file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rivals.score import Score

WIDTH, HEIGHT, MARGIN = 760, 360, 56

COLOURS = ("#0b7a75", "#b3541e", "#6247aa", "#777777")
"""The colours of the launchers, in order: to be told apart on a white and on a black page."""

STYLE = (
    "text { font: 13px sans-serif; fill: #808080 } polyline { fill: none; stroke-width: 2 } path { stroke: #808080 }"
)


def plot(scores: Sequence[Score]) -> str:
    """Return the picture: seconds to the right, the newest step upwards, one line a launcher."""
    longest = max(each.elapsed_s for each in scores)
    most = max(each.progress[-1][1] for each in scores)
    right, bottom = WIDTH - 2 * MARGIN, HEIGHT - MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>Steps over time, under {escape(', '.join(each.launcher for each in scores))}</title>",
        f"<style>{STYLE}</style>",
        f'<path d="M{MARGIN},8 V{bottom} H{MARGIN + right}" fill="none"/>',
        f'<text x="{MARGIN}" y="{bottom + 20}">0</text>',
        f'<text x="{MARGIN + right}" y="{bottom + 20}" text-anchor="end">{longest:.0f} s</text>',
        f'<text x="{MARGIN - 6}" y="20" text-anchor="end">{most:,}</text>',
        f'<text x="{MARGIN - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{MARGIN + 8}" y="20">steps</text>',
    ]
    for each, colour in zip(scores, COLOURS, strict=False):
        points = [(MARGIN + right * at / longest, bottom - (bottom - 16) * step / most) for at, step in each.progress]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        x, y = points[-1]
        lines += [
            f'<polyline points="{drawn}" stroke="{colour}"/>',
            f'<text x="{x + 6:.0f}" y="{y + 4:.0f}" style="fill: {colour}">{escape(each.launcher)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
