"""Command lines whose flags can also be set in the environment, and whose errors are one clear line.

A flag `--max-restarts` of `nodeclient` is read from `NODECLIENT_MAX_RESTARTS` if it is not given, and may be written
`--max_restarts`, as torchrun's users do.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from coordinatord.wire.exits import ExitCode
from coordinatord.wire.messages import DURATION_S_MAX


class SettingsParser(argparse.ArgumentParser):
    """An argument parser with defaults from the environment; `add_argument` works as in argparse."""

    def __init__(self, *, env_prefix: str, environ: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_HelpFormatter, **options)
        self._env_prefix = env_prefix
        self._environ = os.environ if environ is None else environ

    def add_setting(self, *flags: str, variables: Sequence[str] | None = None, **options: Any) -> None:
        """Add a flag, such as `--some-name`, that `PREFIX_SOME_NAME` of the environment gives a default to.

        Where it has several names, the first one counts. `variables` are others to take the default from, the first
        that is set; an empty sequence: none.
        """
        name = flags[0].removeprefix("--").replace("-", "_")
        if variables is None:
            variables = (f"{self._env_prefix}_{name.upper()}",)
        spellings = dict.fromkeys(spelling for flag in flags for spelling in (flag, _underscored(flag)))
        action = self.add_argument(*spellings, **{"dest": name, **options})
        if variables:
            action.help = f"{action.help} [{', '.join(variables)}]"
        # An empty one is what an environment file says of a setting that it leaves open.
        given = next((variable for variable in variables if self._environ.get(variable)), None)
        if given is not None:
            action.default = self._from_environment(action, given, self._environ[given])
            action.required = False

    def nearest(self, wrong: str) -> str | None:
        """Return the flag that somebody who wrote a wrong one may have meant."""
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        wrong = wrong.replace("_", "-")
        begun = [flag for flag in flags if flag.startswith(wrong)]
        return next(iter(begun or difflib.get_close_matches(wrong, flags, n=1)), None)

    def _from_environment(self, action: argparse.Action, variable: str, value: str) -> Any:
        if action.nargs == 0:
            return self._truth(variable, value)
        try:
            read = self._get_value(action, value)
            self._check_value(action, read)
        except argparse.ArgumentError as error:
            self.error(f"environment variable {variable}: {error.message}")
        return read

    def _truth(self, variable: str, value: str) -> bool:
        if value.lower() not in {"0", "1", "false", "true", "no", "yes"}:
            self.error(f"environment variable {variable}: expected 1 or 0, not {value!r}")
        return value.lower() in {"1", "true", "yes"}

    def error(self, message: str) -> NoReturn:
        """End the program with one line, instead of argparse's usage text and exit code 2."""
        line = " ".join(message.splitlines())
        sys.stderr.write(f"{self.prog}: {line} (see {self.prog} --help)\n")
        sys.exit(ExitCode.USAGE)


def _underscored(flag: str) -> str:
    return f"--{flag[2:].replace('-', '_')}" if flag.startswith("--") else flag


def port(text: str) -> int:
    """Read a port number, 0 included."""
    if not text.isdecimal() or int(text) > 65_535:  # noqa: PLR2004 - what a port is
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to 65535")
    return int(text)


def seconds(text: str) -> float:
    """Read a duration."""
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 < number <= DURATION_S_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, more than 0 and at most {DURATION_S_MAX}")
    return number


class _HelpFormatter(argparse.HelpFormatter):
    """Shows one spelling of each name of a flag."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=110)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.option_strings[0] == "-h":
            return super()._format_action_invocation(action)
        value = f" {self._format_args(action, action.dest.upper())}" if action.nargs != 0 else ""
        return ", ".join(flag for flag in action.option_strings if "_" not in flag) + value
