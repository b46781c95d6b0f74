"""The hosts of `nodeclient up`, as people write them, and as other launchers have them in files."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeclient.config.up import HOSTS_MAX, Hosts, read_hostfile, read_hosts

DEEPSPEED = """
# the first rack
gpu1 slots=8
gpu2 slots=4   # half of it
"""

OPEN_MPI = """
gpu1 slots=8 max_slots=8
gpu2 slots = 4 max-slots = 16
"""

MPICH = """
gpu1:8

gpu2:4
"""


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:

    def write(text: str) -> str:
        (path := tmp_path / "hosts").write_text(text, newline="")
        return str(path)

    return write


@pytest.mark.parametrize("text", [DEEPSPEED, OPEN_MPI, MPICH], ids=["DeepSpeed", "Open MPI", "MPICH"])
@pytest.mark.parametrize("written", [str, lambda text: "\ufeff" + text.replace("\n", "\r\n")], ids=["here", "Windows"])
def test_the_host_files_of_other_launchers_are_read(
    text: str, written: Callable[[str], str], file: Callable[[str], str]
) -> None:
    assert read_hostfile(file(written(text))) == {"gpu1": 8, "gpu2": 4}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu1,gpu2:8", {"gpu1": None, "gpu2": 8}),
        (" gpu1 , gpu2 ,", {"gpu1": None, "gpu2": None}),
        ("ana@gpu1.example.org:2", {"ana@gpu1.example.org": 2}),
        ("10.0.0.1:2,fd00::5,[fd00::6]:2", {"10.0.0.1": 2, "fd00::5": None, "fd00::6": 2}),
        ("", {}),
    ],
)
def test_hosts_are_named_as_for_ssh(text: str, hosts: Hosts) -> None:
    assert read_hosts(text) == hosts


@pytest.mark.parametrize(
    ("text", "slots"), [("gpu1\ngpu1", 2), ("gpu1:8\ngpu1", 9), ("gpu1 slots=2\ngpu2\ngpu1 slots=3", 5)]
)
def test_a_host_that_is_named_twice_has_the_slots_of_both_lines(
    text: str, slots: int, file: Callable[[str], str]
) -> None:
    assert read_hostfile(file(text))["gpu1"] == slots


@pytest.mark.parametrize(
    "text",
    [
        "-oProxyCommand=evil",
        "gpu1;reboot",
        "gpu1 gpu2",
        "$(reboot)",
        "gpu1:",
        "gpu1:0",
        "gpu1:4097",
        "gpu1:4096,gpu1",
        "ana@-x",
        "a:b:c:z",
    ],
)
def test_a_text_that_is_no_host_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="expected"):
        read_hosts(text)


@pytest.mark.parametrize("line", ["gpu1 slots=x", "gpu1 cpu=2", "gpu1 slots 8", "gpu1 8", "gpu1 slots="])
def test_a_wrong_line_of_a_file_is_named(line: str, file: Callable[[str], str]) -> None:
    with pytest.raises(ArgumentTypeError, match=r"line 3: "):
        read_hostfile(file(f"# hosts\ngpu0\n{line}\n"))


def test_there_is_a_limit_of_hosts() -> None:
    with pytest.raises(ArgumentTypeError, match="scheduler"):
        read_hosts(",".join(f"gpu{number}" for number in range(HOSTS_MAX + 1)))
