"""Tables on terminals of any width, and numbers as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.protocol.http.api import RestartsStatus
from nodeclient.operate.formatting import Column, budget, duration, table
from nodeclient.operate.terminal_info import NARROW, TerminalInfo
from nodeclient.output.text_width import cut, width

PIPE = TerminalInfo(None, 0, is_terminal=False, coloured=False)

COLUMNS = (Column("NODE"), Column("HOST", 2), Column("SEEN", 1), Column("REASON"))

CELLS = st.text(st.characters(categories=["L", "N", "P"], include_characters="漢字é"), min_size=1, max_size=60)


def terminal(columns: int) -> TerminalInfo:
    return TerminalInfo(columns, 24, is_terminal=True, coloured=False)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), min_size=1, max_size=5), st.integers(NARROW, 300))
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, ...]], columns: int) -> None:
    lines = table(COLUMNS, rows, terminal(columns))
    assert len(lines) == len(rows) + 1
    assert max(map(width, lines)) <= columns


@given(st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), min_size=1, max_size=5))
def test_in_a_pipe_each_cell_is_whole(rows: list[tuple[str, ...]]) -> None:
    titles, *lines = table(COLUMNS, rows, PIPE)
    assert titles.split() == ["NODE", "HOST", "SEEN", "REASON"]
    assert [tuple(line.split()) for line in lines] == rows


def test_what_gives_way_first_and_what_is_cut() -> None:
    rows = [("gpu1", "gpu1.example.org", "0s", "its workers are running")]

    assert table(COLUMNS, rows, terminal(80))[1] == "  gpu1  gpu1.example.org  0s    its workers are running"
    assert table(COLUMNS, rows, terminal(50))[1] == "  gpu1  gpu1.example.org  0s    its workers are r…"
    assert table(COLUMNS, rows, terminal(40))[1] == "  gpu1  0s    its workers are running"
    assert table(COLUMNS, rows, terminal(28))[1] == "  gpu1  its workers are run…"
    assert table(COLUMNS, rows, terminal(20))[1] == "  gpu1  its workers…"


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("漢字", 4, "漢字"), ("漢字漢", 4, "漢…"), ("abc", 1, "…"), ("abc", 0, "")],
)
def test_a_text_is_cut_to_columns(text: str, columns: int, shown: str) -> None:
    assert cut(text, columns) == shown


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0s"), (0.99, "0s"), (59.9, "59s"), (60, "1m00s"), (192, "3m12s"), (7_380, "2h03m"), (370_800, "4d07h")],
)
def test_a_duration_is_one_short_word(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_budget_has_its_window_as_people_read_it() -> None:
    assert budget(RestartsStatus(used=1, max=3)) == "restarts 1 of 3"
    assert budget(RestartsStatus(used=1, max=3, window_s=21_600.0)) == "restarts 1 of 3 within 6h00m"


def test_a_line_is_wrapped_by_its_width_and_not_by_its_letters() -> None:
    text = "job 訓練 failed: rank 0 失敗 of 節点"
    assert terminal(21).wrapped(text) == ["job 訓練 failed: rank", "  0 失敗 of 節点"]
    assert terminal(len(text)).wrapped(text, "    ") == ["job 訓練 failed: rank 0 失敗", "    of 節点"]
    assert terminal(80).wrapped(text) == [text]
