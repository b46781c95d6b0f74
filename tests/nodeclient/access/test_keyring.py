"""Which tokens a program finds, and which of them it shows to a coordinator."""

import os
import sys
from pathlib import Path

import pytest

from coordinatord.protocol.access_token import AccessToken, Role
from coordinatord.runtime.private_files import tokens_directory, write_private
from nodeclient.access.keyring import CREDENTIAL, AccessSettings, Keyring, find_keyring
from tests.support.programs import run

PINS = ["a" * 52, "b" * 52, "c" * 52]


def a_token(pin: str, role: Role = Role.JOIN) -> AccessToken:
    return AccessToken(pin, role, "s" * 52)


@pytest.mark.parametrize("pins", [PINS, PINS[::-1]])
def test_where_any_key_will_do_the_first_token_of_the_file_is_shown(pins: list[str]) -> None:
    """It must not depend on the hashes of strings, which differ from process to process."""
    keyring = find_keyring(AccessSettings(token="\n".join(a_token(pin).text for pin in pins)))
    assert keyring.token_for("d" * 52, Role.JOIN, any_key=True) == a_token(pins[0])


def test_without_tls_no_token_is_looked_for() -> None:
    """The unit of systemd names a file, which is not there where coordinators are `--insecure`."""
    assert find_keyring(AccessSettings(token_file=Path("/nowhere/token"), insecure=True)) == Keyring("")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_directory_of_credentials_of_another_user_is_passed_over(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / CREDENTIAL).write_text(a_token(PINS[0]).text)
    script = (
        "import os, sys; from nodeclient.access.keyring import *; os.setuid(54321);"
        "print(find_keyring(AccessSettings(credentials=sys.argv[1], config_home='/nowhere')))"
    )
    ended = run(sys.executable, "-c", script, tmp_path)
    assert ended.stdout == "Keyring(source='', tokens={})\n", ended.stderr


def test_several_coordinators_share_the_home_of_a_user(tmp_path: Path) -> None:
    for pin in PINS:
        write_private(tokens_directory({"XDG_CONFIG_HOME": str(tmp_path)}) / pin, a_token(pin).text)
    keyring = find_keyring(AccessSettings(config_home=str(tmp_path)))
    assert [keyring.token_for(pin, Role.JOIN) for pin in PINS] == [a_token(pin) for pin in PINS]
