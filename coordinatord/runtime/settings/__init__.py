"""Settings of a program: flags over environment over a TOML file over defaults, each with its source.

A flag `--max-restarts` of `nodeclient` is read from `NODECLIENT_MAX_RESTARTS` if it is not given, and from the key
`max-restarts` of the file that `--config` names if that is not set either. The programs define their settings.

`setting` defines one setting and fills records with settings, `setting_values` reads values from texts, and `parser`
reads all settings of a command line. `toml_file` reads and writes the file, and `completion` writes what a shell needs
to complete flags.
"""

from coordinatord.runtime.settings.completion import add_completion
from coordinatord.runtime.settings.parser import SettingsError, SettingsParser, help_texts, with_help_flag
from coordinatord.runtime.settings.setting import Rank, filled
from coordinatord.runtime.settings.setting_values import folder, joined, port, seconds

__all__ = [
    "Rank",
    "SettingsError",
    "SettingsParser",
    "add_completion",
    "filled",
    "folder",
    "help_texts",
    "joined",
    "port",
    "seconds",
    "with_help_flag",
]
