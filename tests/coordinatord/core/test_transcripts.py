"""What the coordinator does in each situation, as transcripts that a person can read; `--rewrite` writes them anew."""

from pathlib import Path

import pytest

from coordinatord.core.rounds.transitions.table import ROWS
from tests.support.golden import SCRIPTS, compare, transcribe
from tests.support.rows import KEEPING_ROWS, keeping_rows_taken, run_rows_taken


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_coordinator_acts_as_the_transcript_says(script: Path, *, rewrite: bool) -> None:
    compare(script, transcribe(script.read_text()), rewrite=rewrite)


def test_the_transcripts_take_every_row_of_the_run_table() -> None:
    with run_rows_taken() as taken:
        for script in SCRIPTS:
            transcribe(script.read_text())
    left = [f"{row.source}: {row.when.__name__}" for row in ROWS if row not in taken]
    assert not left


def test_the_transcripts_take_every_row_of_the_keeping_wing() -> None:
    with keeping_rows_taken() as taken:
        for script in SCRIPTS:
            transcribe(script.read_text())
    assert taken == KEEPING_ROWS
