"""The flags of `coordinatord token`, and the settings made from them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path

from msgspec import Struct

from coordinatord.config.state_flags import state_dir
from coordinatord.protocol.access_token import Role
from coordinatord.protocol.fields import NAME_MAX
from coordinatord.runtime.settings import SettingsParser, filled


class TokenVerb(StrEnum):
    """The commands about tokens."""

    NEW = "new"
    LIST = "list"
    REVOKE = "revoke"


class TokenConfig(Struct, frozen=True):
    """All settings of `coordinatord token`."""

    state_dir: Path
    is_given: bool
    """Whether the user or systemd named the state directory. Then a token may be made before the daemon's first start
    there."""
    verb: TokenVerb
    name: str
    """The name of the token; empty to generate one for a new token."""
    role: Role
    jobs: str
    """The pattern of a new token's job ids; `*` for all."""
    output: Path | None
    """The file for a new token; None for standard output."""
    certificate: Path | None
    """The organisation's certificate that the daemon uses; None for our own. A new token has the pin of its key.

    This and `key` are flags of the daemon (`add_serve`), given before the command, or in environment and file.
    """
    key: Path | None
    """The key of `certificate`; None without one."""


def add_token(parser: SettingsParser) -> None:
    """Add the flags of `coordinatord token`."""
    parser.add_argument("verb", choices=[str(verb) for verb in TokenVerb], metavar="new|list|revoke", help="what to do")
    parser.add_argument("revoked", nargs="?", metavar="NAME", help="the token that is to be revoked")
    add = partial(parser.add_setting, variables=())  # only the daemon's flags are read from the environment
    add(
        "--role join|admin|read",
        "what a new token is for: to be a node, to operate and see, or to see",
        choices=[str(role) for role in Role],
        default=str(Role.JOIN),
    )
    add("--jobs PATTERN", "the job ids that it is for, such as 'ana-*'", _printable, default="*")
    add("--name NAME", "its name, for events and logs", _printable)
    add("--output FILE", "write it to this new file, for this user only, instead of printing it", Path)


def read_token(
    parser: SettingsParser, command: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]
) -> TokenConfig:
    """Make the settings of `coordinatord token`; `parser` and `command` as in `read_replay`. Raises `SettingsError`."""
    verb = TokenVerb(given.verb)
    if verb is TokenVerb.REVOKE and given.revoked is None:
        command.error("name the token that is to be revoked, as in coordinatord token revoke NAME")
    if verb is not TokenVerb.REVOKE and given.revoked is not None:
        command.error(f"not understood: {given.revoked}; --name gives a new token its name")
    if given.output is not None and _has_content(given.output):
        command.error(f"--output {given.output}: the file is not empty: name another one, or remove it")
    name = given.revoked or given.name or ""
    directory = state_dir(parser, given, environ)
    is_given = given.state_dir is not None or "STATE_DIRECTORY" in environ
    return filled(
        TokenConfig, given, state_dir=directory, is_given=is_given, verb=verb, name=name, role=Role(given.role)
    )


def _has_content(path: Path) -> bool:
    with suppress(OSError):  # writing it will report the error
        return path.stat().st_size > 0
    return False


def _printable(text: str) -> str:
    if not 1 <= len(text) <= NAME_MAX or not text.isprintable():
        raise argparse.ArgumentTypeError(f"expected 1 to {NAME_MAX} printable characters")
    return text
