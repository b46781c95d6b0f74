"""The flags with which nodes and operators find a coordinator, and authenticate.

No flag takes a token: everybody on a host can read command lines, and a shell's history stores them.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from coordinatord.runtime.settings import SettingsParser, filled, joined
from nodeclient.access.keyring import VARIABLE, AccessSettings
from nodeclient.config import flag_values

PREFIX = "NODECLIENT"
"""The prefix of the variables of flags that torchrun does not have."""


def add_access_flags(parser: SettingsParser) -> None:
    """Add the flags for authentication; their variables begin with `NODECLIENT_` on each command line."""
    add = partial(parser.add_setting, prefix=PREFIX)
    add(
        "--token-file FILE",
        "file with the token of the coordinator",
        _file,
        by_default="NODECLIENT_TOKEN, the credential nodeclient-token of systemd, or the files in"
        " ~/.config/coordinatord/tokens",
    )
    add(
        "--tls-ca FILE",
        "authorities to trust, in PEM, if one of them has signed the coordinator's certificate",
        _file_here,
        by_default="the key that the token names",
        dest="authorities",
    )
    add(
        "--tls-cert FILE",
        "client certificate, in PEM, for a coordinator that asks for one",
        _file_here,
        dest="certificate",
    )
    add("--tls-key FILE", "its key, in PEM, without a password", _file_here, dest="key")
    add("--insecure", "use neither TLS nor a token, as a coordinator with --insecure does")


def add_coordinators(parser: SettingsParser, **options: Any) -> None:
    """Add `--coord` with these options of `add_setting`."""
    parser.add_setting(
        "--coord HOST[:PORT][,...]",
        "where coordinatord listens (port: 29400); several are tried in turn",
        flag_values.endpoints,
        array=joined,
        default=(),
        **options,
    )


def read_access(
    parser: SettingsParser, given: argparse.Namespace, *, plaintext_allowed: bool = False
) -> AccessSettings:
    """Make the settings; `plaintext_allowed` as in `AccessSettings`. Raises `SettingsError`."""
    parser.require_both(given, "certificate", "key")
    return filled(
        AccessSettings,
        given,
        token=parser.environ.get(VARIABLE, "").strip(),
        credentials=parser.environ.get("CREDENTIALS_DIRECTORY", ""),
        config_home=parser.environ.get("XDG_CONFIG_HOME", ""),
        plaintext_allowed=plaintext_allowed,
    )


def _file(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("'': expected a file")
    return Path(text)


def _file_here(text: str) -> Path:
    """Parse the path of a file that has to be there already: a missing one would only show after a long wait."""
    path = _file(text)
    try:
        path.stat()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error.strerror}") from error
    return path
