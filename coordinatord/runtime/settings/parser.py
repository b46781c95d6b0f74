"""Parses flags that can also be set by environment variables and in a TOML file; an error is one line.

A flag may be written with `_`, as in torchrun. One function parses a value from any of the three sources, so that it
means the same in each. `--show-config` shows the source of each value.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from coordinatord.protocol.access_token import contains_token
from coordinatord.protocol.errors import OperationalError, OutputError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.text import clip, most_similar
from coordinatord.runtime import PAGES
from coordinatord.runtime.settings.setting import InForce, Setting, Source
from coordinatord.runtime.settings.setting_values import types
from coordinatord.runtime.settings.toml_file import ConfigFile, ConfigFileError, remark, toml_line, toml_value

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text in quotes"}
"""The names of TOML's types in errors."""

VARIABLE_SIMILARITY = 0.85
"""An unknown environment variable that is as similar as this to a known one counts as misspelt. COORDS and MAX_RESTART
are; SERVICE_PORT, which Kubernetes sets with our prefix, is not."""

_HELP_WIDTH = 110
"""The width of a help text, in characters."""


class SettingsError(OperationalError):
    """A setting is wrong, missing or unknown."""

    exit_code = ExitCode.USAGE

    def __init__(self, program: str, message: str) -> None:
        super().__init__(f"{message} (see {program} --help)")
        self.message = message


class SettingsParser(argparse.ArgumentParser):
    """An argument parser that also reads environment variables and a file, and raises `SettingsError`.

    `add_setting` defines a setting, and `parse_args` returns the value of each from its strongest source.
    `add_argument` adds an argument of the command line only, as in argparse. A program calls `exclude` and `record`
    before `show_if_requested`, which shows the settings that they change.
    """

    def __init__(self, *, env_prefix: str, environ: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_HelpFormatter, **options)
        self._env_prefix = env_prefix
        self.environ = os.environ if environ is None else environ
        """The environment whose variables count."""
        self._settings: dict[str, Setting] = {}
        """The settings by attribute, as in the parsed arguments."""
        self._in_force: dict[str, InForce] = {}
        """Their values and sources, after parsing."""
        self._texts: dict[str, str] = {}
        """The last text that was parsed as a value, for each setting."""
        self._config_variable = ""
        """The variable that names the file; empty without `add_config_file`."""
        self._add = self.add_argument
        """Adds a flag below the last heading of the help text."""
        self._file: ConfigFile | None = None

    # Definitions of settings

    def add_heading(self, title: str) -> None:
        """Show the flags that are added after this below a heading of the help text."""
        self._add = self.add_argument_group(title).add_argument

    def add_setting(
        self,
        usage: str,
        meaning: str,
        read: Callable[[str], Any] | None = None,
        *,
        default: Any = None,
        by_default: object = "",
        prefix: str = "",
        variables: Sequence[str] | None = None,
        required: bool = False,
        array: Callable[[Sequence[str]], str] | None = None,
        reload: bool = False,
        **options: Any,
    ) -> None:
        """Add a flag that is also read from the variable `PREFIX_SOME_NAME` and from a file.

        `usage` has the flag's names and the name of its value, as in `--some-name -s N`. The first name gives the
        variable, the key and the attribute, which ends in `_s` for seconds (`S`). The name of the value determines its
        types in a file. A flag with neither a value nor `choices` is a switch.

        `read` parses the value from its text. `by_default` describes a default that is no plain value. `prefix`
        replaces the program's `PREFIX`. `variables` replaces the whole variable by any number of variables, of which
        the first one that is set counts. `array` converts an array of a file to the text of the flag. With `reload`, a
        running program applies a new value.
        """
        flags = [word for word in usage.split() if word.startswith("-")]
        value = usage.removeprefix(" ".join(flags)).strip()
        name = _underscored(flags[0]).removeprefix("--")
        if variables is None:
            variables = (f"{prefix or self._env_prefix}_{name.upper()}",)
        if by_default := by_default or _in_words(default):
            meaning += f" (default: {by_default})"
        if variables:
            meaning += f" [{', '.join(variables)}]"
        options = {"dest": f"{name}_s" if value == "S" else name, "help": meaning.replace("%", "%%"), **options}
        is_switch = not value and "choices" not in options
        if is_switch:
            options["action"], default = "store_true", bool(default)
        else:
            options |= {"type": read, "metavar": value or None}
        spellings = dict.fromkeys(spelling for flag in flags for spelling in (flag, _underscored(flag)))
        # The attribute exists only if the flag was given.
        action = self._add(*spellings, **options, default=argparse.SUPPRESS)
        kinds = (bool,) if is_switch else types(value)
        self._settings[action.dest] = Setting(action, variables, default, required, kinds, array, reload)

    def add_config_file(self, variable: str) -> None:
        """Add `--config`, which `variable` can also set, and `--show-config`, which shows the settings in force."""
        self._config_variable = variable
        self._add(
            "--config",
            metavar="FILE",
            default=self.environ.get(variable) or None,
            help=f"settings in TOML, named as the flags are; flags and variables win over it [{variable}]",
        )
        self._add(
            "--show-config", action="store_true", help="print the settings in force, and where each is from, as TOML"
        )

    def add_command(self, name: str, **options: Any) -> None:
        """Add the command line after all flags, such as a script's; in a file it is an array under this key."""
        action = self.add_argument(name, nargs=argparse.REMAINDER, **options)
        # With `array`, a file may have an array. Its elements are the words, so `str` is never called.
        self._settings[name] = Setting(action, (), default=[], required=False, kinds=(), array=str)

    # Settings in force

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read flags, environment and file. Raises `SettingsError`."""
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return given

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as `parse_args`, and return the unknown arguments as well. Raises `SettingsError`.

        Missing settings are no error if there are unknown arguments, since one of these may be a misspelt flag.
        """
        given, unknown = super().parse_known_args(args, namespace)
        # If one positional argument comes before flags, Python 3.11's argparse takes no optional one after them. Its
        # word is the first unknown one. An argument with a type does not get the word, which is not parsed here.
        for action in self._get_positional_actions():
            is_left_out = action.nargs == "?" and action.type is None and getattr(given, action.dest) is None
            if is_left_out and unknown and unknown[0][:1] != "-":
                setattr(given, action.dest, unknown.pop(0))
        for dest, setting in self._settings.items():
            if setting.is_command and getattr(given, dest)[:1] == ["--"]:  # it only ends the flags
                setattr(given, dest, getattr(given, dest)[1:])
        if self._config_variable and given.config:
            self._read_file(Path(given.config))
        for setting in self._settings.values():
            self._settle(given, setting)
        missing = [
            " or the environment variable ".join([self.flag(dest), *setting.variables])
            for dest, setting in self._settings.items()
            if setting.required and self.source(dest) is Source.DEFAULT
        ]
        if missing and not unknown:
            self.error("; ".join([f"the following arguments are required: {', '.join(missing)}", *self.misspelt]))
        return given, unknown

    @property
    def file(self) -> Path | None:
        """The file that was read, if one was named."""
        return None if self._file is None else self._file.path

    @property
    def misspelt(self) -> list[str]:
        """Remarks about unknown environment variables that seem misspelt."""
        known = {name for setting in self._settings.values() for name in setting.variables} | {self._config_variable}
        remarks = []
        for name in sorted(name for name, value in self.environ.items() if value and name not in known):
            prefix, _, suffix = name.partition("_")
            suffixes = [other.removeprefix(f"{prefix}_") for other in known if other.startswith(f"{prefix}_")]
            if near := most_similar(suffix, suffixes, VARIABLE_SIMILARITY):
                remarks.append(f"environment variable {clip(name)} has no effect: did you mean {prefix}_{near}?")
        return remarks

    @property
    def reloadable(self) -> list[str]:
        """The names of the settings that a reload changes."""
        return [setting.keys[0] for setting in self._settings.values() if setting.reload]

    def values(self, given: argparse.Namespace, *, reload: bool) -> Mapping[str, object]:
        """Return the values of the settings that a reload changes, or of all others, by name."""
        chosen = ((dest, setting) for dest, setting in self._settings.items() if setting.reload is reload)
        return {setting.keys[0]: getattr(given, dest, None) for dest, setting in chosen}

    def given_flags(self) -> dict[str, str]:
        """Return the settings that any source gives, by attribute, as flags for a program on another host."""
        flags = {}
        for dest, setting in self._settings.items():
            if self.source(dest) is Source.DEFAULT or setting.is_command:
                continue
            if not setting.is_switch:
                flags[dest] = f"--{setting.keys[0]}={self._texts[dest]}"
            elif self._in_force[dest].value:  # a switch that is off has no flag
                flags[dest] = f"--{setting.keys[0]}"
        return flags

    def flag(self, dest: str) -> str:
        """Return the first name of a setting's flag."""
        return self._settings[dest].action.option_strings[0]

    def source(self, dest: str) -> Source:
        """Return the source of a setting's value."""
        return self._in_force[dest].source

    def exclude(self, given: argparse.Namespace, switch: str, other: str, message: str) -> None:
        """Reset a switch or another setting if both are given: the one from the weaker source.

        `message` is the error if both sources are equal. Raises `SettingsError`.
        """
        if not getattr(given, switch) or not getattr(given, other):
            return
        if self.source(switch) is self.source(other):
            self.error(message)
        winner, loser = sorted((switch, other), key=self.source, reverse=True)
        setattr(given, loser, self._settings[loser].default)
        origin = f"overruled: {self._settings[winner].keys[0]} is given by {self._in_force[winner].origin}"
        self._in_force[loser] = InForce(Source.DEFAULT, origin, None)

    def require_both(self, given: argparse.Namespace, one: str, other: str) -> None:
        """Reject one of two settings without the other one, such as a certificate without its key.

        Raises `SettingsError`.
        """
        if (getattr(given, one) is None) is not (getattr(given, other) is None):
            flags = " and ".join(map(self.flag, (one, other)))
            self.error(f"{flags} belong together: give both, or neither")

    def reject_tokens(self, arguments: Sequence[str], place: str = "a file") -> None:
        """Reject a command line with a token in it; `place` says where a token belongs.

        Raises `SettingsError`, which does not show the token.
        """
        own = arguments[: arguments.index("--")] if "--" in arguments else arguments
        if any(contains_token(argument) or argument.partition("=")[0] == "--token" for argument in own):
            self.error(
                f"everybody on this host can read a token in a command line: put it into {place}, and have another one"
                " made"
            )

    def record(self, dest: str, value: object, origin: str = "default") -> None:
        """Record the value that a program uses for a setting that no source has set, for `--show-config`."""
        if self.source(dest) is Source.DEFAULT:
            self._in_force[dest] = InForce(Source.DEFAULT, origin, value)

    def show_if_requested(self, given: argparse.Namespace) -> None:
        """Print the settings in force and end the program, if `--show-config` was given."""
        if getattr(given, "show_config", False):
            text = "\n".join([*self._shown(), ""])
            try:
                sys.stdout.write(text.encode(sys.stdout.encoding, "backslashreplace").decode(sys.stdout.encoding))
                sys.stdout.flush()
            except OSError as error:
                sys.stdout = None  # otherwise Python would try again at its end, and fail
                raise OutputError(error) from error
            self.exit()

    def _shown(self) -> list[str]:
        lines = [remark(f"{self.prog}: the settings in force, and where each is from; this can be used as a file")]
        lines += map(remark, self.misspelt)
        for dest, setting in self._settings.items():
            now = self._in_force[dest]
            if now.value in (None, [], ""):
                lines.append(remark(f"{setting.keys[0]}: {now.origin}"))
            else:
                lines.append(toml_line(setting.keys[0], now.value, now.origin))
        return lines

    def _settle(self, given: argparse.Namespace, setting: Setting) -> None:
        """Take a setting's value from its strongest source: flag, environment, file, default. Record the source.

        `written` is the value as it stands in a file, for `--show-config`.

        A subcommand has a parser of its own, whose attributes argparse copies over those of the main parser. If both
        parsers have a flag, the subcommand's flag has the default `SUPPRESS`. Without a value it sets no attribute, so
        that the main parser's value stays in force.
        """
        dest, value = setting.action.dest, setting.default
        has_flag = getattr(given, dest) != [] if setting.is_command else dest in given
        # An empty variable of an environment file means that the setting is not given.
        variable = next((variable for variable in setting.variables if self.environ.get(variable)), None)
        values = self._file.values if self._file is not None else {}
        key = next((key for key in setting.keys if key in values), None)
        if has_flag:
            value = getattr(given, dest)
            text = self._texts.get(dest)
            written = value if setting.is_switch or setting.is_command or text is None else setting.as_toml(text)
            in_force = InForce(Source.FLAG, "flag", written)
        elif variable is not None:
            value = self._from_environment(setting, variable, self.environ[variable])
            written = value if setting.is_switch else setting.as_toml(self.environ[variable])
            in_force = InForce(Source.ENVIRONMENT, f"environment variable {variable}", written)
        elif key is not None and self._file is not None:
            value = self._from_file(self._file, setting, key)
            in_force = InForce(Source.FILE, f"file {self._file.place(key)}", values[key])
        else:
            in_force = setting.default_in_force
        self._in_force[dest] = in_force
        if value is not argparse.SUPPRESS:
            setattr(given, dest, value)

    # Sources

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Parse one value, and remember its text; argparse calls this for each flag."""
        self._texts[action.dest] = arg_string
        return super()._get_value(action, arg_string)

    def _read(self, setting: Setting, text: str, where: str) -> Any:
        """Parse a text from a variable or a file as a value of the flag."""
        if contains_token(text):
            self.error(f"{where}: a token has no place here, where others see it: put it into a file, and replace it")
        try:
            read = self._get_value(setting.action, text)
            self._check_value(setting.action, read)
        except argparse.ArgumentError as error:
            self.error(f"{where}: {error.message}")
        return read

    def _from_environment(self, setting: Setting, variable: str, value: str) -> Any:
        if not setting.is_switch:
            return self._read(setting, value, f"environment variable {variable}")
        if value.lower() not in {"0", "1", "false", "true", "no", "yes"}:
            self.error(f"environment variable {variable}: expected 1 or 0, not {value!r}")
        return value.lower() in {"1", "true", "yes"}

    def _read_file(self, path: Path) -> None:
        try:
            self._file = ConfigFile(path)
        except ConfigFileError as error:
            self.error(str(error))
        known = [key for setting in self._settings.values() for key in setting.keys]
        for name, value in self._file.values.items():
            if name not in known:
                near = None if isinstance(value, dict) else _nearest(name, known)
                table = "; settings stand at the top, in no table" if isinstance(value, list | dict) else ""
                hint = f"; did you mean {near}?" if near else table
                self.error(f"{self._file.place(name)}: {name!r} is no setting of {self.prog}{hint}")
        for setting in self._settings.values():
            twice = [key for key in setting.keys if key in self._file.values]
            if twice[1:]:
                self.error(f"{self._file.place(twice[1])}: {' and '.join(twice)} are one setting: give it once")

    def _from_file(self, file: ConfigFile, setting: Setting, key: str) -> Any:
        value, where = file.values[key], f"{file.place(key)}: {key}"
        if type(value) is list and setting.array is not None:
            parts = [str(part) for part in value if type(part) in {str, *setting.kinds} - {bool}]
            if len(parts) < len(value):
                self.error(f"{where}: each element has to be a text in quotes")
            if setting.is_command:
                return self._without_nulls(parts, where)
            try:
                value = setting.array(parts)
            except argparse.ArgumentTypeError as error:
                self.error(f"{where}: {error}")
        elif type(value) not in setting.kinds:
            self.error(f"{where}: expected {self._expected(setting)}, not {_as_toml(value)}")
        if setting.is_switch:
            return value
        [text] = self._without_nulls([str(value)], where)
        return self._read(setting, text, where)

    def _without_nulls(self, parts: list[str], where: str) -> list[str]:
        if any("\0" in part for part in parts):
            self.error(f"{where}: a null character can be part of no setting")
        return parts

    @staticmethod
    def _expected(setting: Setting) -> str:
        kinds = [kind for kind in setting.kinds if not (kind is int and float in setting.kinds)]
        return " or ".join([*(_WORDS[kind] for kind in kinds), *(["an array"] if setting.array is not None else [])])

    # Errors

    def has_flag(self, word: str) -> bool:
        """Whether a word of the command line is a flag of this parser, with or without a value."""
        return any(word.partition("=")[0] in action.option_strings for action in self._actions)

    def nearest(self, wrong: str) -> str | None:
        """Return the known flag that is most similar to a wrong one."""
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        return _nearest(wrong.replace("_", "-"), flags)

    def check_flags(self, words: Sequence[str], *others: argparse.ArgumentParser) -> None:
        """Check that each flag among `words` is one of this parser or of `others`. Raises `SettingsError`.

        Call it before parsing, because for `--setle 3` argparse would report that 3 is no command.
        """
        known = {flag for parser in (self, *others) for action in parser._actions for flag in action.option_strings}  # noqa: SLF001
        for word in words:
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag != "--" and flag not in known:
                near = _nearest(flag.replace("_", "-"), sorted(known))
                self.error(f"unrecognized arguments: {word}{f'; did you mean {near}?' if near else ''}")

    def format_help(self) -> str:
        """Return the help text, with its long lines folded: those of the description and the epilog."""
        folded = (
            textwrap.fill(line, _HELP_WIDTH, break_on_hyphens=False) for line in super().format_help().split("\n")
        )
        return "\n".join(folded)

    def error(self, message: str) -> NoReturn:
        """Raise `SettingsError` instead of printing argparse's usage text and exiting with code 2."""
        line = " ".join(message.splitlines())
        raise SettingsError(self.prog, line)


def help_texts(summary: str, example: str, exit_codes: str) -> dict[str, Any]:
    """Return options of a parser with the help texts of a program or a command."""
    return {
        "help": summary,
        "description": f"{summary[:1].upper()}{summary[1:]}.",
        "epilog": f"Example: {example}\nExit codes: {exit_codes}; all of them: {PAGES}/docs/exit-codes.md",
    }


def with_help_flag(arguments: Sequence[str]) -> Sequence[str]:
    """Replace the word `help` by the flag `--help`: `help status` becomes `status --help`."""
    return [*arguments[1:2], "--help"] if arguments and arguments[0] == "help" else arguments


def _nearest(wrong: str, known: Sequence[str]) -> str | None:
    """Return the known name that begins with a wrong one, or else the most similar one."""
    continued = [name for name in known if wrong and name.startswith(wrong)]
    return continued[0] if continued else most_similar(wrong, known)


def _as_toml(value: object) -> str:
    match value:
        case list():
            return "an array"
        case dict():
            return "a table"
        case bool() | int() | float() | str():
            return clip(toml_value(value))
        case _:
            return "a date or time"


def _in_words(default: object) -> str:
    """Format a default for the help; empty if it is no plain value."""
    is_plain = type(default) in {int, float, str} and default is not argparse.SUPPRESS
    return (f"{default:g}" if isinstance(default, float) else str(default)) if is_plain else ""


def _underscored(flag: str) -> str:
    return f"--{flag[2:].replace('-', '_')}" if flag.startswith("--") else flag


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows only one spelling of each flag, and preserves line breaks in the epilog."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=_HELP_WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.option_strings[0] == "-h":
            return super()._format_action_invocation(action)
        value = f" {self._format_args(action, action.dest.upper())}" if action.nargs != 0 else ""
        return ", ".join(flag for flag in action.option_strings if "_" not in flag) + value
