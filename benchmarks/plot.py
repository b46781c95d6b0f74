"""Draws charts as SVG, to be read on a white and on a black page. Nothing is measured here."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, EDGE = 800, 40
"""The width of a picture in pixels, and the edge of each chart above, below and to the right."""

COLOURS = ("#0b7a75", "#b3541e", "#6247aa", "#a67c00")

STYLE = "text { font: 13px sans-serif; fill: #808080 } polyline { fill: none } path { stroke: #808080; opacity: 0.4 }"


class Series(NamedTuple):
    """Some points, joined by a line; without a width, a dot for each."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str = COLOURS[0]
    width: float = 2.0


class Chart(NamedTuple):
    """One chart. Rows and columns are places on the axes, by their labels."""

    title: str
    rows: Mapping[str, float]
    columns: Mapping[str, float]
    series: Sequence[Series]
    height: int = 260


def draw(*charts: Chart) -> str:
    """Return a picture of the charts, one below the other."""
    parts, top = list[str](), 0
    for chart in charts:
        parts += _chart(chart, top)
        top += chart.height + 2 * EDGE
    title = escape("; ".join(chart.title for chart in charts))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img"><title>{title}</title>'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def _chart(chart: Chart, top: int) -> Iterator[str]:
    xs = [*chart.columns.values(), *(x for each in chart.series for x, _ in each.points)]
    ys = [*chart.rows.values(), *(y for each in chart.series for _, y in each.points)]
    left, right, bottom = EDGE + 7 * max(map(len, chart.rows)), WIDTH - EDGE, top + EDGE + chart.height
    first, last, lowest, highest = min(xs), max(xs), min(ys), max(ys)

    def at(x: float, y: float) -> tuple[str, str]:
        across, up = (x - first) / (last - first), (y - lowest) / (highest - lowest)
        return f"{left + across * (right - left):.1f}", f"{bottom - up * chart.height:.1f}"

    names = "".join(f'<tspan dx="12" fill="{each.colour}">{escape(each.name)}</tspan>' for each in chart.series)
    yield f'<text x="{left}" y="{top + EDGE // 2}">{escape(chart.title)}{names}</text>'
    for label, value in chart.rows.items():
        x, y = at(first, value)
        yield f'<path d="M{x},{y} H{right}"/>'
        yield f'<text x="{x}" y="{y}" dx="-8" dy="4" text-anchor="end">{escape(label)}</text>'
    for label, value in chart.columns.items():
        x, y = at(value, lowest)
        yield f'<text x="{x}" y="{y}" dy="20" text-anchor="middle">{escape(label)}</text>'
    for each in chart.series:
        places = [at(*point) for point in each.points]
        if each.width:
            line = " ".join(map(",".join, places))
            yield f'<polyline points="{line}" stroke="{each.colour}" stroke-width="{each.width}"/>'
        else:
            yield from (f'<circle cx="{x}" cy="{y}" r="4" fill="{each.colour}"/>' for x, y in places)
