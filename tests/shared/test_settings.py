"""Flags, environment and their errors, with a real parser."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from coordinatord.shared.settings import SettingsParser, port, seconds


def parser(environ: dict[str, str]) -> SettingsParser:
    made = SettingsParser(prog="program", env_prefix="PROGRAM", environ=environ)
    made.add_setting("--max-restarts", type=int, default=0, help="restarts")
    made.add_setting("--port", type=port, default=1, help="port")
    made.add_setting("--level", choices=("low", "high"), default="low", help="level")
    made.add_setting("--json", action="store_true", help="json")
    return made


def test_a_flag_may_be_written_with_dashes_or_underscores() -> None:
    assert parser({}).parse_args(["--max-restarts", "3"]).max_restarts == 3
    assert parser({}).parse_args(["--max_restarts=3"]).max_restarts == 3


def test_the_environment_gives_the_default_and_a_flag_wins_over_it() -> None:
    environ = {"PROGRAM_MAX_RESTARTS": "5", "PROGRAM_JSON": "1"}
    assert parser(environ).parse_args([]).max_restarts == 5
    assert parser(environ).parse_args([]).json is True
    assert parser(environ).parse_args(["--max-restarts", "2"]).max_restarts == 2


@pytest.mark.parametrize(
    ("environ", "arguments", "words"),
    [
        ({}, ["--max-restart", "3"], "unrecognized arguments: --max-restart"),
        ({}, ["--port", "70000"], "argument --port: '70000' is no port"),
        ({}, ["--port", "http"], "argument --port: 'http' is no port"),
        ({"PROGRAM_PORT": "http"}, [], "PROGRAM_PORT"),
        ({"PROGRAM_LEVEL": "loud"}, [], "PROGRAM_LEVEL"),
        ({"PROGRAM_JSON": "maybe"}, [], "PROGRAM_JSON"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it_and_exit_code_64(
    environ: dict[str, str], arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser(environ).parse_args(arguments)
    assert ended.value.code == 64
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert words in said
    assert "--help" in said


@pytest.mark.parametrize("text", ["0", "-1", "86401", "nan", "inf"])
def test_a_duration_is_positive_and_at_most_a_day(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="86400"):
        seconds(text)


def test_the_help_names_the_environment_variable_and_one_spelling() -> None:
    text = parser({}).format_help()
    assert "[PROGRAM_MAX_RESTARTS]" in text
    assert "--max_restarts" not in text
