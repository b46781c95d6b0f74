"""The settings of nodeclient: meanings and defaults; how wrong ones are said is tested with the real program."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError

import pytest

from coordinatord.wire.messages import RANKS_MAX, Spec
from nodeclient.config import Endpoint, JoinConfig, StatusConfig, endpoints, node_range, parse

PYTHON = sys.executable


def join(*arguments: str, **environ: str) -> JoinConfig:
    config = parse(["join", *arguments, "--", PYTHON, "train.py", "--nnodes", "9"], {"PATH": "", **environ})
    assert isinstance(config, JoinConfig)
    return config


def test_the_defaults_need_no_thought() -> None:
    config = join("--coord", "host")
    assert config.coordinators == (Endpoint("host", 29400),)
    assert config.job == "default"
    assert config.spec == Spec(1, RANKS_MAX, 0)
    assert config.workers >= 1
    assert config.command == (PYTHON, "train.py", "--nnodes", "9")


def test_standalone_is_a_job_of_one_node() -> None:
    assert join("--standalone").spec == Spec(1, 1, 0)
    assert join("--standalone", "--nnodes", "1:2").spec == Spec(1, 2, 0)


def test_every_flag_comes_from_the_environment_as_well() -> None:
    config = join(NODECLIENT_COORD="a,b:1", NODECLIENT_NNODES="2:4", NODECLIENT_MAX_RESTARTS="3", NODECLIENT_JOB_ID="j")
    assert config.coordinators == (Endpoint("a", 29400), Endpoint("b", 1))
    assert (config.spec, config.job) == (Spec(2, 4, 3), "j")


def test_standalone_on_the_command_line_wins_over_a_coordinator_in_the_environment() -> None:
    assert join("--standalone", NODECLIENT_COORD="host").coordinators == ()


def test_underscores_are_as_good_as_dashes() -> None:
    assert join("--coord", "h", "--max_restarts", "2", "--nproc_per_node", "3").workers == 3


def test_two_nodeclients_of_a_host_have_names_of_their_own() -> None:
    assert join("--coord", "h").node != join("--coord", "h").node
    assert join("--coord", "h", "--node-id", "gpu7").node == "gpu7"


def test_status_takes_a_job() -> None:
    assert parse(["status", "--coord", "h:1", "--json", "mnist"], {}) == StatusConfig(
        (Endpoint("h", 1),), "mnist", True
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h", [("h", 29400)]),
        ("h:1", [("h", 1)]),
        ("10.0.0.1:65535", [("10.0.0.1", 65535)]),
        ("[fd00::5]:7", [("fd00::5", 7)]),
        ("[fd00::5]", [("fd00::5", 29400)]),
        ("fd00::5", [("fd00::5", 29400)]),
        ("a, b:2", [("a", 29400), ("b", 2)]),
    ],
)
def test_endpoints_are_read(text: str, expected: list[tuple[str, int]]) -> None:
    assert [(endpoint.host, endpoint.port) for endpoint in endpoints(text)] == expected


@pytest.mark.parametrize("text", ["", ":1", "h:0", "h:65536", "h:x", "h,,g", "[fd00::5", "[]:1", "http://h"])
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="HOST"):
        endpoints(text)


def test_an_ipv6_endpoint_is_shown_in_brackets() -> None:
    assert str(Endpoint("fd00::5", 1)) == "[fd00::5]:1"


@pytest.mark.parametrize(("text", "expected"), [("4", (4, 4)), ("2:8", (2, 8)), ("2:", (2, RANKS_MAX))])
def test_node_ranges_are_read(text: str, expected: tuple[int, int]) -> None:
    assert node_range(text) == expected


@pytest.mark.parametrize("text", ["", "0", "3:2", "a", "1:b", ":3", "1:2:3", "-1"])
def test_what_is_no_node_range_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        node_range(text)
