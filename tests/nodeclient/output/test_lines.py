"""Bytes are cut into lines the same way however they arrive, none of them is lost, and a prefix says whose they are."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeclient.output.lines import (
    LINE_BYTES_MAX,
    LineCutter,
    RowJoiner,
    WorkerLabel,
    as_lines,
    as_overwritten,
    first_piece,
    make_prefix,
    plain,
    prefixed,
)

CHUNKS = st.lists(st.binary(min_size=1) | st.lists(st.sampled_from([b"\r", b"\n", b"a"]), min_size=1).map(b"".join))


@given(CHUNKS)
def test_nothing_is_lost_and_only_whole_pieces_come_out(chunks: list[bytes]) -> None:
    cutter = LineCutter()
    out = [cutter.feed(chunk) for chunk in chunks]
    assert all(pieces.endswith((b"\n", b"\r")) for pieces in out if pieces)
    assert cutter.has_unfinished == bool(cutter.unfinished())
    assert b"".join([*out, cutter.take_unfinished()]) == b"".join(chunks)
    assert cutter.take_unfinished() == b""


@given(CHUNKS)
def test_lines_do_not_depend_on_how_they_arrive(chunks: list[bytes]) -> None:
    def lines(arriving: list[bytes]) -> bytes:
        cutter = LineCutter()
        pieces = [cutter.feed(chunk) for chunk in arriving] + [cutter.take_unfinished() + b"\n"]
        return b"".join(as_lines(piece) for piece in pieces if piece)

    whole = b"".join(chunks)
    by_hand = re.sub(rb"\r+", b"\n", re.sub(rb"(?m)^\r+", b"", re.sub(rb"\r+\n", b"\n", whole + b"\n")))
    assert lines(chunks) == lines([bytes([byte]) for byte in whole]) == by_hand


def test_a_line_without_end_is_cut_before_it_fills_the_memory() -> None:
    cutter = LineCutter()
    chunk = b"x" * 65_536
    out = []
    for _ in range(3 * LINE_BYTES_MAX // len(chunk)):
        out.append(cutter.feed(chunk))
        assert len(cutter.unfinished()) <= LINE_BYTES_MAX
    cut = [len(piece) for piece in out if piece]
    assert len(cut) == 2
    assert all(LINE_BYTES_MAX < size <= LINE_BYTES_MAX + len(chunk) + 1 for size in cut)


@pytest.mark.parametrize(
    ("pieces", "lines", "progress"),
    [
        (b"a\nb\n", b"a\nb\n", b""),
        (b"\r 10%\r 20%\r 30%\n", b" 30%\n", b""),
        (b"a\n\r 10%\r 20%\r", b"a\n", b" 20%"),
        (b"a\r\nb\r\r\n", b"a\nb\n", b""),
        (b"\r", b"", b""),
    ],
)
def test_on_a_terminal_the_last_state_counts(pieces: bytes, lines: bytes, progress: bytes) -> None:
    assert as_overwritten(pieces) == (lines, progress)


def test_a_prefix_comes_before_every_line() -> None:
    assert prefixed(b"> ", b"a\n\nb\n") == b"> a\n> \n> b\n"
    assert prefixed(b"> ", b"\n") == b"> \n"


@pytest.mark.parametrize(
    ("pieces", "first", "others"), [(b"a\r\nb\n", b"a", b"b\n"), (b"a\rb\n", b"a", b"b\n"), (b"\n", b"", b"")]
)
def test_the_first_piece_is_without_its_end(pieces: bytes, first: bytes, others: bytes) -> None:
    assert first_piece(pieces) == (first, others)


def test_a_plain_text_has_neither_colours_nor_controls() -> None:
    assert plain("\x1b[1;31mred\x1b[0m\x07 \x1b]0;title\x07a\tb\x1b(B\x1b[2K\x9b") == "red a  b"
    assert plain("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\") == "link"


def test_a_flood_of_carriage_returns_takes_no_longer_than_other_bytes() -> None:
    flood = b"\r" * LINE_BYTES_MAX
    assert as_lines(flood + b"x\n") == b"x\n"
    assert as_overwritten(flood + b"x\n" + flood) == (b"x\n", b"")
    assert first_piece(flood + b"x\n") == (b"", b"x\n")


@pytest.mark.parametrize("size", [1_000, 40])
def test_rows_that_are_drawn_anew_become_one(size: int) -> None:
    up = b"\r\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2K"
    drawn = [b"a\nb\nc", up + b"d\ne\nf", up + b"g\nh\ni", b"\nnext\n"]
    joiner = RowJoiner()
    joined = b"".join(joiner.feed(part[start : start + size]) for part in drawn for start in range(0, len(part), size))
    assert joined == b"a\nb\nc\rd  e  f\rg  h  i\nnext\n"


SPEAKER = WorkerLabel(rank=11, local_rank=3, role="trainer", host="gpu1.example.org")


@pytest.mark.parametrize(
    ("template", "several_hosts", "prefix"),
    [
        (None, False, b"[rank 11] "),
        (None, True, b"[gpu1 rank 11] "),
        ("[${role_name}${local_rank}]:", True, b"[trainer3]:"),
        ("${hostname}:${rank}: ", True, b"gpu1.example.org:11: "),
        ("[${host}/$rank] $unknown ", False, b"[gpu1/11] $unknown "),
        ("", True, b""),
    ],
)
def test_prefixes(template: str | None, several_hosts: bool, prefix: bytes) -> None:
    assert make_prefix(SPEAKER, template, several_hosts=several_hosts, coloured=False) == prefix


def test_an_address_is_not_taken_for_a_long_name() -> None:
    label = WorkerLabel(0, 0, "trainer", "10.0.0.5")
    assert make_prefix(label, None, several_hosts=True, coloured=False) == b"[10.0.0.5 rank 0] "


def test_neighbouring_ranks_have_different_colours() -> None:
    prefixes = [
        make_prefix(WorkerLabel(rank, rank, "trainer", "a"), None, several_hosts=False, coloured=True)
        for rank in range(8)
    ]
    assert all(prefix.startswith(b"\x1b[") and prefix.endswith(b"\x1b[0m ") for prefix in prefixes)
    assert len({prefix.partition(b"[rank")[0] for prefix in prefixes}) == 8
