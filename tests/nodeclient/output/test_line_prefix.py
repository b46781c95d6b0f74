"""What stands before a worker's lines."""

import pytest

from nodeclient.output.lines import WorkerLabel, make_prefix

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
