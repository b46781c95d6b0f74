"""Words can be read in light and dark, and causes be told apart, also by people who see no difference of two cones.

The matrices are those of Machado, Oliveira and Fernandes (2009) for a full deficiency. The distance is that of CIE 1976
in L*a*b*, in which 2.3 can just be seen.
"""

import math
import re
from itertools import combinations

import pytest

from coordinatord.core.rounds.values.time_ledger import Activity
from tests.coordinatord.server.page.test_files import FOLDER

STYLE = (FOLDER / "style.css").read_text()

DISTANCE_MIN = 15.0

CONTRAST_MIN = 4.5
"""The least contrast of text to its ground (WCAG 2.2, 1.4.3)."""

Matrix = tuple[tuple[float, float, float], ...]

EYES: dict[str, Matrix] = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no long": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no medium": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "no short": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}

WHITE = (0.95047, 1.0, 1.08883)

XYZ: Matrix = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))


def times(matrix: Matrix, vector: list[float]) -> list[float]:
    return [sum(factor * part for factor, part in zip(row, vector, strict=True)) for row in matrix]


def linear(colour: str) -> list[float]:
    """Return how much light of red, green and blue a colour such as `#0d9e78` has."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def lab(colour: str, eyes: Matrix) -> list[float]:
    """Return how a colour looks, in L*a*b*."""
    seen = [min(1.0, max(0.0, part)) for part in times(eyes, linear(colour))]
    scaled = [part / white for part, white in zip(times(XYZ, seen), WHITE, strict=True)]
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in scaled)
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


def palette(scheme: str) -> dict[str, str]:
    """Return the colours that have a name, in a scheme."""
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)", 1)
    named = re.findall(r"--([\w-]+): (#[0-9a-f]+);", light + (dark if scheme == "dark" else ""))
    return {name: colour.replace("#fff", "#ffffff") if len(colour) == 4 else colour for name, colour in named}


def colours(scheme: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the plain colours of causes, and the colours of those with stripes."""
    causes = dict(re.findall(r'^\[data-cause="(\w+)"\] { background: (.*); }$', STYLE, re.MULTILINE))
    assert set(Activity) <= causes.keys(), "each cause has its colour"
    plain: dict[str, str] = {}
    striped: dict[str, str] = {}
    for cause, background in causes.items():
        [name, *_] = re.findall(r"var\(--(\w+)\)", background)
        (striped if "gradient" in background else plain)[cause] = palette(scheme)[name]
    return plain, striped


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_can_be_read(scheme: str) -> None:
    light = {name: times(XYZ, linear(colour))[1] for name, colour in palette(scheme).items()}
    for text in ("text", "muted", "accent", "good", "wait", "busy", "bad", "off"):
        for ground in ("ground", "panel", "raised", "bad-ground"):
            darker, lighter = sorted((light[text], light[ground]))
            assert (lighter + 0.05) / (darker + 0.05) >= CONTRAST_MIN, f"{text} on {ground}"
    assert (light["ground"] > 0.5) == (scheme == "light")


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_two_causes_do_not_look_alike(scheme: str, eyes: str) -> None:
    for alike in colours(scheme):
        for one, other in combinations(alike, 2):
            apart = math.dist(lab(alike[one], EYES[eyes]), lab(alike[other], EYES[eyes]))
            assert apart >= DISTANCE_MIN, f"{one} and {other}: {apart:.1f}"


def test_the_page_has_each_activity_in_both_orders() -> None:
    text = (FOLDER / "activities.js").read_text()
    listed, ordered = text.split("export const IN_A_ROUND")
    assert (
        set(Activity) <= set(re.findall(r'key: "(\w+)"', listed)) == set(re.findall(r'"(\w+)"', ordered.split("]")[0]))
    )
