"""What a node does in each situation, as stories that a person can read; `--rewrite` writes them anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.golden import compare, transcribe
from tests.support.stories import STORIES, Story


@pytest.mark.parametrize("script", STORIES, ids=lambda script: script.stem)
def test_a_node_acts_as_its_stories_say(script: Path, *, rewrite: bool) -> None:
    compare(script, transcribe(script.read_text(), Story()), rewrite=rewrite)
