"""Reads the settings of a program from flags, the environment, a TOML file and defaults, in this order of precedence.

For example, without the flag `--max-restarts`, `nodeclient` reads `NODECLIENT_MAX_RESTARTS`, and then the key
`max-restarts` of the file that `--config` names. Each program defines its settings; the code here knows none of them.

`setting` describes one setting, `setting_values` parses values, and `parser` reads all settings of a command line.
`toml_file` reads and writes the file, and `completion` makes a completion script for a shell.
"""

from coordinatord.runtime.settings.completion import add_completion
from coordinatord.runtime.settings.parser import SettingsError, SettingsParser, help_texts, with_help_flag
from coordinatord.runtime.settings.setting import Source, filled
from coordinatord.runtime.settings.setting_values import (
    duration,
    folder,
    joined,
    number,
    port,
    seconds,
    seconds_or_zero,
)

__all__ = [
    "SettingsError",
    "SettingsParser",
    "Source",
    "add_completion",
    "duration",
    "filled",
    "folder",
    "help_texts",
    "joined",
    "number",
    "port",
    "seconds",
    "seconds_or_zero",
    "with_help_flag",
]
