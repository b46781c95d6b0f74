"""`coordinatord token`: makes, lists and revokes tokens in a state directory, even while the daemon runs."""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from coordinatord.config.token_flags import TokenConfig, TokenVerb
from coordinatord.protocol.access_token import AccessToken
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.text import clip
from coordinatord.runtime.local_time import local, moment
from coordinatord.runtime.pinned_tls import server_context
from coordinatord.runtime.private_files import read_private, write_private
from coordinatord.security.identity import KEY, Identity, own_identity
from coordinatord.security.setup import FOLDER, PIN
from coordinatord.security.token_store import KnownToken, TokenStore
from coordinatord.store.directory import is_claimed


class NeverUsedError(OperationalError):
    """No coordinatord has run with the default state directory, so the daemon uses another one. Nothing was made."""

    exit_code = ExitCode.NO_INPUT


ADVICE = "if yours has another one, give --state-dir"
"""The advice if no coordinatord uses the state directory, because it may be the wrong one."""


def change_tokens(config: TokenConfig) -> int:
    """Make, list or revoke tokens; return the exit code. The daemon sees a change within a second.

    Raises `NeverUsedError`, `TokenStoreError`, `PrivateFileError`, `IdentityError` and `OSError`.
    """
    directory = config.state_dir / FOLDER
    if config.verb is TokenVerb.NEW and not (config.is_given or _has_run(directory)):
        raise NeverUsedError(
            f"no coordinatord has run with {config.state_dir}: give --state-dir, under systemd --state-dir"
            " /var/lib/coordinatord"
        )
    store = TokenStore(directory)
    store.refresh()
    if config.verb is not TokenVerb.NEW and not store.tokens:
        _say(f"there are no tokens in {config.state_dir.absolute()}: {ADVICE}")
    match config.verb:
        case TokenVerb.NEW:
            name = config.name or f"{config.role}-{secrets.token_hex(3)}"
            store.make(_pin(config), {name: config.role}, config.jobs, lambda made: _hand_out(made, config.output))
        case TokenVerb.LIST:
            sys.stdout.write(_table(store.tokens) if store.tokens else "")
        case TokenVerb.REVOKE:
            store.revoke(config.name)
            if not is_claimed(config.state_dir):
                _say(
                    f"the token {config.name} is revoked in {config.state_dir.absolute()}, which no coordinatord uses"
                    f" at present: {ADVICE}. Coordinators that share a store learn of this once one of them is"
                    " started with this directory"
                )
    return ExitCode.OK


def _hand_out(made: Sequence[AccessToken], path: Path | None) -> None:
    """Write new tokens to a file, or print them. Raises `PrivateFileError` and `OSError`."""
    text = "".join(f"{token.text}\n" for token in made)
    if path is not None:
        write_private(path, text)
        return
    # A reader that has ended is an error here, so that `TokenStore.make` removes the tokens again.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.stdout.write(text)
    sys.stdout.flush()


def _table(tokens: Iterable[KnownToken]) -> str:
    rows = [("NAME", "ROLE", "JOBS", "MADE", "STATE")]
    for token in tokens:
        state = "valid" if token.revoked_at is None else f"revoked {moment(local(token.revoked_at))}"
        rows.append((clip(token.name), str(token.role), clip(token.jobs), moment(local(token.made_at)), state))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _pin(config: TokenConfig) -> str:
    """Return the pin of the coordinator's key, which is in each token: by it, clients know the coordinator.

    The pin of an organisation's key is that of the given files, or else the one that the last start has left. Without
    either, the coordinator's own key is used, and made if there is none yet.
    """
    directory = config.state_dir / FOLDER
    if config.certificate is not None and config.key is not None:
        identity = Identity(config.certificate, config.key)
    elif (pin := read_private(directory / PIN)) is not None:
        return pin.strip()
    else:
        if not _has_run(directory):
            _say(f"no coordinatord has started with {config.state_dir.absolute()} yet: its key is made now; {ADVICE}")
        identity = own_identity(directory)
    return identity.load_into(server_context())


def _has_run(directory: Path) -> bool:
    """Whether a coordinatord has run with this folder: then it has a key in it, or an organisation's pin."""
    return any((directory / name).exists() for name in (KEY, PIN))


def _say(text: str) -> None:
    sys.stderr.write(f"coordinatord: {text}\n")
