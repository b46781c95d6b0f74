"""Flags, environment, file and their errors, with a real parser."""

import os
import tomllib
from argparse import ArgumentTypeError, Namespace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from coordinatord.runtime.settings import SettingsError, SettingsParser, Source, filled, joined, port, seconds
from coordinatord.runtime.settings.toml_file import BYTES_MAX, toml_line


def parser(environ: dict[str, str]) -> SettingsParser:
    made = SettingsParser(prog="program", env_prefix="PROGRAM", environ=environ)
    made.add_setting("--max-restarts --restarts N", "restarts", int, default=0)
    made.add_setting("--port PORT", "port", port, default=1)
    made.add_setting("--wait S", "wait", seconds, by_default="long")
    made.add_setting("--level", "level", choices=("low", "high"), default="low")
    made.add_setting("--hosts HOST[,...]", "hosts", array=joined)
    made.add_setting("--json", "json")
    made.add_config_file("PROGRAM_CONFIG")
    made.add_command("command")
    return made


def settings(folder: Path, text: str | bytes) -> str:
    file = folder / "settings.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(file)


def test_a_flag_may_be_written_with_dashes_or_underscores() -> None:
    assert parser({}).parse_args(["--max-restarts", "3"]).max_restarts == 3
    assert parser({}).parse_args(["--max_restarts=3"]).max_restarts == 3


@pytest.mark.parametrize(
    ("environ", "arguments", "words"),
    [
        ({}, ["--max-restart", "3"], "unrecognized arguments: --max-restart"),
        ({}, ["--port", "70000"], "argument --port: '70000' is no port"),
        ({}, ["--port", "http"], "argument --port: 'http' is no port"),
        ({"PROGRAM_PORT": "http"}, [], "environment variable PROGRAM_PORT: 'http' is no port"),
        ({"PROGRAM_LEVEL": "loud"}, [], "PROGRAM_LEVEL"),
        ({"PROGRAM_JSON": "maybe"}, [], "PROGRAM_JSON"),
        ({"PROGRAM_CONFIG": "/no/such/file"}, [], "the settings file /no/such/file cannot be read: No such file"),
        ({}, ["--config", "/"], "the settings file / cannot be read: Is a directory"),
        ({}, ["--config", os.devnull], "is no regular file"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(environ: dict[str, str], arguments: list[str], words: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parser(environ).parse_args(arguments)
    assert "\n" not in str(refused.value)
    assert words in str(refused.value)
    assert str(refused.value).endswith("(see program --help)")


@pytest.mark.parametrize("text", ["0", "-1", "86401", "nan", "inf"])
def test_a_duration_is_positive_and_at_most_a_day(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="86400"):
        seconds(text)


def test_the_help_names_the_environment_variable_and_one_spelling() -> None:
    text = parser({}).format_help()
    assert "--max-restarts, --restarts N " in text
    assert "restarts (default: 0) [PROGRAM_MAX_RESTARTS]" in text
    assert "wait (default: long) [PROGRAM_WAIT]" in text
    assert "[PROGRAM_CONFIG]" in text
    assert "--max_restarts" not in text


# The file


def test_flags_win_over_the_environment_that_over_the_file_and_that_over_the_default(tmp_path: Path) -> None:
    file = settings(tmp_path, "max_restarts = 1\nport = 10\nlevel = 'high'\n")
    read = parser({"PROGRAM_MAX_RESTARTS": "2", "PROGRAM_PORT": "20", "PROGRAM_CONFIG": file})
    given = read.parse_args(["--max-restarts", "3"])
    assert (given.max_restarts, given.port, given.level, given.wait_s) == (3, 20, "high", None)
    sources = [read.source(name) for name in ("max_restarts", "port", "level", "wait_s")]
    assert sources == [Source.FLAG, Source.ENVIRONMENT, Source.FILE, Source.DEFAULT]
    assert read.file == Path(file)


def test_an_empty_name_of_a_file_is_none_and_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    file = settings(tmp_path, "port = 10")
    assert parser({"PROGRAM_CONFIG": file}).parse_args(["--config", ""]).port == 1
    assert parser({"PROGRAM_CONFIG": file, "PROGRAM_PORT": ""}).parse_args([]).port == 10


def test_each_type_of_toml_is_read_as_the_flag_would_be(tmp_path: Path) -> None:
    text = """
    restarts = 2
    "wait" = 1.5
    hosts = ["a", "b"]
    json = true
    command = ["python", "-c", "print('a b')"]
    """
    given = parser({}).parse_args(["--config", settings(tmp_path, text)])
    assert given.max_restarts == 2
    assert (given.wait_s, given.hosts, given.json) == (1.5, "a,b", True)
    assert given.command == ["python", "-c", "print('a b')"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("0.5", 0.5), ("1e3", 1e3), ("30s", 30), ("1.5m", 90), ("2h", 7200), ("1d", 86400)],
)
def test_a_duration_may_have_a_unit(tmp_path: Path, text: str, seconds: float) -> None:
    assert parser({}).parse_args(["--wait", text]).wait_s == seconds
    assert parser({}).parse_args(["--config", settings(tmp_path, f"wait = '{text}'")]).wait_s == seconds


def test_a_command_that_is_given_wins_over_that_of_the_file(tmp_path: Path) -> None:
    file = settings(tmp_path, "command = ['a']")
    assert parser({}).parse_args(["--config", file, "--", "b", "c"]).command == ["b", "c"]
    assert parser({}).parse_args(["--config", file, "--"]).command == ["a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# first\nprot = 3", "line 2: 'prot' is no setting of program; did you mean port?"),
        ("max-restart = 3", "line 1: 'max-restart' is no setting of program; did you mean max-restarts?"),
        ("colour = 3", "line 1: 'colour' is no setting of program (see"),
        ("[max]\nport = 3", "line 1: 'max' is no setting of program; settings stand at the top, in no table"),
        ("[program]\nport = 3", "line 1: 'program' is no setting of program; settings stand at the top, in no table"),
        ("config = 'x'", "'config' is no setting"),
        ("port = '3'", 'line 1: port: expected a whole number, not "3"'),
        ("port = 3.0", "port: expected a whole number, not 3"),
        ("port = true", "port: expected a whole number, not true"),
        ("port = 1979-05-27", "port: expected a whole number, not a date or time"),
        ("port = [1]", "port: expected a whole number, not an array"),
        ("[port]", "port: expected a whole number, not a table"),
        ("port = 70000", "line 1: port: '70000' is no port"),
        ("wait = true", "wait: expected a number"),
        ("wait = '3w'", "wait: '3w': expected seconds, more than 0 and at most 86400, or with a unit, such as 15m"),
        ("wait = nan", "wait: 'nan': expected seconds"),
        ("json = 1", "json: expected true or false, not 1"),
        ("level = 'loud'", "line 1: level: invalid choice: 'loud'"),
        ("hosts = 3", "hosts: expected a text in quotes or an array, not 3"),
        ("hosts = ['a', 3]", "hosts: each element has to be a text in quotes"),
        ("hosts = ['a,b']", "hosts: 'a,b' has a comma"),
        ('hosts = "a\\u0000b"', "hosts: a null character"),
        ("command = 'a b'", 'command: expected an array, not "a b"'),
        ('command = ["a\\u0000"]', "command: a null character"),
        ("max-restarts = 1\nmax_restarts = 2", "max-restarts is there twice, once with - and once with _"),
        ("max-restarts = 1\nrestarts = 2", "line 2: max-restarts and restarts are one setting"),
        ("port = 1\nport = 2", "is not TOML: "),
        ("port = ", "is not TOML: Invalid value (at "),
        (b"# \xff\n", "line 1: this is not UTF-8"),
        ("x = " + "[" * 10_000, "is not TOML: nested too deeply"),
        ("x = " + "9" * 10_000, "is not TOML: "),
        ("#" * (BYTES_MAX + 1), "has more than 64 KiB"),
    ],
)
@pytest.mark.usefixtures("collects_nothing")
def test_what_is_wrong_in_a_file_is_one_line_that_says_where(text: str | bytes, words: str, tmp_path: Path) -> None:
    file = settings(tmp_path, text)
    with pytest.raises(SettingsError) as refused:
        parser({"PROGRAM_CONFIG": file}).parse_args([])
    assert "\n" not in str(refused.value)
    assert file in str(refused.value)
    assert words in str(refused.value)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="is no regular file"):
        parser({}).parse_args(["--config", str(tmp_path / "pipe")])


def test_of_two_that_exclude_each_other_the_one_of_the_stronger_source_is_in_force(tmp_path: Path) -> None:
    def choose(environ: dict[str, str], *arguments: str) -> tuple[bool, str | None]:
        read = parser(environ)
        found: Namespace = read.parse_args(arguments)
        read.exclude(found, "json", "hosts", "not both")
        return found.json, found.hosts

    file = settings(tmp_path, "hosts = 'a'")
    assert choose({"PROGRAM_CONFIG": file, "PROGRAM_JSON": "1"}) == (True, None)
    assert choose({"PROGRAM_JSON": "1"}, "--hosts", "b") == (False, "b")
    assert choose({"PROGRAM_HOSTS": "b"}, "--json") == (True, None)
    assert choose({"PROGRAM_HOSTS": "b"}) == (False, "b")
    with pytest.raises(SettingsError, match="not both"):
        choose({}, "--json", "--hosts", "b")


class Waiting(Struct):
    """A record of two settings and of something else."""

    port: int
    wait_s: float
    made: str


def test_a_record_takes_the_settings_that_are_named_as_its_fields_are() -> None:
    found = parser({"PROGRAM_WAIT": "3"}).parse_args(["--json"])
    assert filled(Waiting, found, made="here") == Waiting(port=1, wait_s=3.0, made="here")


def test_what_a_reload_changes_is_told_from_what_it_does_not() -> None:
    read = SettingsParser(prog="program", env_prefix="PROGRAM", environ={})
    read.add_setting("--pause S", "pause", seconds, default=2.0, reload=True)
    read.add_setting("--port PORT", "port", port, default=1)
    found = read.parse_args(["--pause", "3"])
    assert (read.values(found, reload=True), read.values(found, reload=False)) == ({"pause": 3.0}, {"port": 1})


# What is in force


def shown(read: SettingsParser, *arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    found = read.parse_args(["--show-config", *arguments])
    with pytest.raises(SystemExit) as ended:
        read.show_if_requested(found)
    assert not ended.value.code
    return capsys.readouterr().out


def test_what_is_in_force_is_shown_with_where_it_is_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = settings(tmp_path, "\nlevel = 'high'\nhosts = ['a', 'b']")
    read = parser({"PROGRAM_CONFIG": file, "PROGRAM_MAX_RESTARTS": "2"})
    assert shown(read, "--wait", "3", "--", "run", "it now", capsys=capsys).splitlines()[1:] == [
        "max-restarts = 2  # environment variable PROGRAM_MAX_RESTARTS",
        "port = 1  # default",
        "wait = 3  # flag",
        f'level = "high"  # file {file}, line 2',
        f'hosts = ["a", "b"]  # file {file}, line 3',
        "json = false  # default",
        'command = ["run", "it now"]  # flag',
    ]


def test_what_is_shown_can_be_used_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--wait", "0.25", "--hosts", 'é "quoted" \\ \x1b\u2028\U0001f600', "--json", "--", "a", "b c"]
    text = shown(parser({}), *flags, capsys=capsys)
    found = parser({}).parse_args(flags)
    again = parser({"PROGRAM_CONFIG": settings(tmp_path, text)}).parse_args([])
    for name in ("max_restarts", "port", "wait_s", "level", "hosts", "json", "command"):
        assert getattr(again, name) == getattr(found, name), name


def test_what_nobody_gave_is_shown_as_a_comment_or_as_what_was_made_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    read = parser({})
    read.parse_args([])
    read.record("hosts", ["localhost"], "environment variable SOMEBODYS")
    read.record("port", 7)
    read.show_if_requested(Namespace(show_config=False))
    with pytest.raises(SystemExit):
        read.show_if_requested(Namespace(show_config=True))
    text = capsys.readouterr().out
    assert "# wait: not set (default: long)" in text
    assert 'hosts = ["localhost"]  # environment variable SOMEBODYS' in text
    assert "port = 7  # default" in text


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.booleans() | st.floats(allow_nan=False))
def test_every_value_is_written_so_that_toml_reads_the_same(value: object) -> None:
    line = toml_line("key", value, "flag \n \0 \u2028")
    assert line.isprintable()
    assert tomllib.loads(line) == {"key": value}


@pytest.mark.parametrize("value", ["/a\udc80", ["/a", "\udcff"]])
def test_a_value_that_is_not_utf_8_makes_no_file_unreadable(value: object) -> None:
    line = toml_line("key", value, "flag")
    assert line.isprintable()
    assert tomllib.loads(line) == {}


# A slip in the name of a variable


def test_a_variable_that_was_meant_for_a_setting_is_distinguished_from_what_others_put_there() -> None:
    slips = ["PROGRAM_MAX_RESTART", "PROGRAM_RPORT", "PROGRAM_MAXRESTARTS", "PROGRAM_CONFG"]
    others = ["PROGRAM_COMMAND", "PROGRAM_SERVICE_PORT", "PROGRAM_PORT_80_TCP", "PROGRAM_PORT", "OTHER_MAX_RESTART"]
    environ = dict.fromkeys([*slips, *others, "PROGRAM", "", "_", "PORTS"], "8") | {"PROGRAM_WAITS": ""}
    read = parser(environ)
    assert [line.split()[2] for line in read.misspelt] == sorted(slips)
    words = "environment variable PROGRAM_MAX_RESTART has no effect: did you mean PROGRAM_MAX_RESTARTS?"
    assert words in read.misspelt


def test_a_slip_is_shown_above_the_settings_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(parser({"PROGRAM_PROT": "8", "PROGRAM_LEVELS": "low"}), capsys=capsys).splitlines()
    assert lines[1] == "# environment variable PROGRAM_LEVELS has no effect: did you mean PROGRAM_LEVEL?"
    assert lines[2].startswith("max-restarts = ")


def test_a_setting_that_is_missing_is_named_with_its_variable_and_with_the_slip_in_it() -> None:
    read = SettingsParser(prog="program", env_prefix="PROGRAM", environ={"PROGRAM_CORD": "h"})
    read.add_setting("--coord HOST", "coord", required=True)
    with pytest.raises(SettingsError) as refused:
        read.parse_args([])
    assert refused.value.message == (
        "the following arguments are required: --coord or the environment variable PROGRAM_COORD;"
        " environment variable PROGRAM_CORD has no effect: did you mean PROGRAM_COORD?"
    )
