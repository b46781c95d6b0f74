"""What the operators' commands read from flags and environment, and what they import."""

import pytest

from coordinatord.protocol.ip_addresses import Endpoint
from nodeclient.config.operate import CommandConfig, EventsConfig, ReportConfig, StatusConfig, Verb
from nodeclient.config.parse import parse
from tests.support.programs import BIN, run

HERE = (Endpoint("h", 29400),)


def test_each_command_takes_its_words() -> None:
    assert parse(["status", "--coord", "h", "--watch", "--all"], {}) == StatusConfig(
        None, json=False, watch=True, all=True, coordinators=HERE
    )
    assert parse(["events", "--coord", "h", "-f", "m"], {}) == EventsConfig(
        "m", json=False, follow=True, coordinators=HERE
    )
    assert parse(["report", "--coord", "h", "--json"], {}) == ReportConfig(None, json=True, coordinators=HERE)
    assert parse(["drain", "--coord", "h", "b", "a", "b", "--reason", "bad fan"], {}) == CommandConfig(
        Verb.DRAIN, None, ("b", "a"), "bad fan", coordinators=HERE
    )
    assert parse(["drain", "--coord", "h", "a", "--ahead"], {}) == CommandConfig(
        Verb.DRAIN, None, ("a",), "", ahead=True, coordinators=HERE
    )
    for verb in (Verb.STOP, Verb.RESTART, Verb.FORGET):
        assert parse([verb, "--coord", "h", "m"], {}) == CommandConfig(verb, "m", (), "", coordinators=HERE)


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["status", "-w"], ["status", "--watch"]),
        (["logs", "m", "--tail", "3"], ["logs", "m", "--last", "3"]),
        (["logs", "m", "-n", "3"], ["logs", "m", "--last", "3"]),
        (["events", "-n", "3"], ["events", "--last", "3"]),
        (["events", "--tail=3", "-f"], ["events", "--last", "3", "--follow"]),
    ],
)
def test_flags_have_the_names_that_other_programs_give_them(words: list[str], own: list[str]) -> None:
    environ = {"NODECLIENT_COORD": "h"}
    assert parse(words, environ) == parse(own, environ)


def test_the_environment_names_the_coordinator() -> None:
    environ = {"NODECLIENT_COORD": "h:29400", "NODECLIENT_REASON": "not read"}
    assert parse(["undrain", "a"], environ) == CommandConfig(Verb.UNDRAIN, None, ("a",), "", coordinators=HERE)
    assert parse(["stop"], environ) == CommandConfig(Verb.STOP, None, (), "", coordinators=HERE)


@pytest.mark.slow
def test_the_help_names_all_commands() -> None:
    shown = run(BIN / "nodeclient", "--help").stdout
    for word in ("join", "run", "launch", "status", "events", "report", *Verb):
        assert f"\n    {word} " in shown
