"""Settings of a program: flags over environment over a TOML file over defaults, each with where it came from.

A flag `--max-restarts` of `nodeclient` is read from `NODECLIENT_MAX_RESTARTS` if it is not given, and from the key
`max-restarts` of the file that `--config` names if that is not set either. What the settings mean is their programs'.
"""

from coordinatord.shared.settings.completion import add_completion
from coordinatord.shared.settings.parser import SettingsError, SettingsParser
from coordinatord.shared.settings.setting import Rank
from coordinatord.shared.settings.values import NUMBER, WHOLE, WHOLE_OR_TEXT, joined, port, seconds

__all__ = [
    "NUMBER",
    "WHOLE",
    "WHOLE_OR_TEXT",
    "Rank",
    "SettingsError",
    "SettingsParser",
    "add_completion",
    "joined",
    "port",
    "seconds",
]
