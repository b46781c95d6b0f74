"""Coordinator, nodes and commands as they are by default: encrypted, for those with a token, and with nothing to do."""

import json
import os
import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.support.places import Place
from tests.support.programs import BIN, TIMEOUT_S, run

pytestmark = pytest.mark.slow


def test_each_mismatch_is_one_line_that_says_what_mends_it(place: Place, tmp_path: Path) -> None:
    place.coordinator()
    wrong = Place(tmp_path / "other", ExitStack()).token("new", "--role", "read")
    place.token("new", "--role", "read", "--name", "gone", "--output", str(tmp_path / "gone"))
    place.token("revoke", "gone")
    place.token("new", "--output", str(tmp_path / "join"))
    for flags, extra, words in (
        ((), {}, r"wants a token, and there is none here: run coordinatord token new --role read --output FILE"),
        (("--insecure",), {}, "speaks TLS only: leave --insecure out"),
        ((), {"NODECLIENT_TOKEN": wrong}, "its key matches no token in environment variable NODECLIENT_TOKEN"),
        (
            ("--token-file", str(tmp_path / "gone")),
            {},
            r"the token gone was revoked: .* \(the token is from \S+/gone\)",
        ),
        (
            ("--token-file", str(tmp_path / "join")),
            {},
            r"has the role join, and this needs read: .* by coordinatord token new --state-dir \S+ --role read",
        ),
        (("--token-file", str(tmp_path / "none")), {}, "none cannot be read: No such file"),
        ((), {"NODECLIENT_TOKEN": "crd1.x"}, "NODECLIENT_TOKEN: this is no access token"),
    ):
        done = place.ask("status", *flags, environ={**place.stranger, **extra})
        assert re.search(words, done.stderr), done.stderr
        assert (done.returncode, len(done.stderr.splitlines())) == (77, 1)
    node = place.node(environ=place.stranger)
    node.await_line("WARNING .* not let in: .* wants a token, and there is none here: .* token new --output FILE")
    node = place.node("--token-file", str(tmp_path / "gone"), environ=place.stranger)
    assert node.wait() == 77
    assert "the token gone was revoked" in node.lines[-1]
    node = place.node("--insecure", environ=place.stranger)
    assert node.wait() == 77
    assert "speaks TLS only: leave --insecure out" in node.lines[-1]


def test_a_coordinator_in_the_clear_gets_no_token(place: Place) -> None:
    place.coordinator().stop()
    open_to_all = place.coordinator("--insecure")
    open_to_all.await_line("--insecure: everybody who reaches the port may join")
    for done in (place.ask("status"), place.ask("drain", "x")):
        assert re.search("uses no TLS, and there is a token here .* nothing was sent", done.stderr), done.stderr
    place.node().await_line("not let in: .* uses no TLS")
    assert "lets everybody in, in the clear (--insecure)" in place.ask("status", "--insecure").stdout
    assert json.loads(place.ask("status", "--insecure", "--json").stdout)["insecure"] is True
    assert place.node("--insecure").wait() == 0
    assert place.ask("status", environ=place.stranger).returncode == 0


def test_a_token_that_comes_later_is_found(place: Place, tmp_path: Path) -> None:
    place.coordinator()
    home = tmp_path / "second"
    node = place.node(environ={**place.stranger, "XDG_CONFIG_HOME": str(home)})
    node.await_line("wants a token, and there is none here")
    (place.folder / "config").rename(home)
    assert node.wait() == 0


def test_a_token_in_a_command_line_is_refused_and_not_repeated(place: Place) -> None:
    secret = place.token("new")
    for argv in (("nodeclient", "status", "--coord", "h", "--token", secret), ("coordinatord", "--port", secret)):
        done = run(BIN / argv[0], *argv[1:], environ=place.environ)
        assert done.returncode == 64
        assert "everybody on this host can read a token in a command line" in done.stderr
        assert secret not in done.stderr


def test_the_tokens_are_listed_without_their_secrets(place: Place) -> None:
    place.coordinator()
    place.token("new", "--role", "admin", "--jobs", "ana-*", "--name", "ana")
    place.token("revoke", "first-join")
    shown = place.token("list")
    head, *lines = shown.splitlines()
    assert head.split() == ["NAME", "ROLE", "JOBS", "MADE", "STATE"]
    assert [line[head.index("ROLE") :].split()[0] for line in lines] == ["join", "admin", "admin"]
    assert re.fullmatch(r"first-join +join +\* +\S+ \S+ +revoked \S+ \S+", lines[0])
    assert re.fullmatch(r"ana +admin +ana-\* +\S+ \S+ +valid", lines[2])
    assert not any(secret in shown for secret in place.secrets.values())


def test_a_token_that_nobody_reads_is_not_valid(place: Place) -> None:
    place.token("new", "--name", "ana")
    reader, writer = os.pipe()
    os.close(reader)
    argv: list[str | Path] = [BIN / "coordinatord", "token", "new", "--name", "ben", "--state-dir", place.state]
    done = subprocess.run(
        argv, env=place.environ, stdout=writer, stderr=PIPE, text=True, timeout=TIMEOUT_S, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (74, "coordinatord: the output cannot be written: Broken pipe\n")
    assert "ben" not in place.token("list")


def test_a_token_that_is_revoked_where_no_coordinator_runs_is_said_to_be(place: Place) -> None:
    def said(*argv: str) -> tuple[int, str]:
        done = run(BIN / "coordinatord", "token", *argv, "--state-dir", place.state, environ=place.environ)
        assert done.stdout == ""
        return done.returncode, done.stderr.rstrip()

    nowhere = f"coordinatord: there are no tokens in {place.state}: if yours has another one, give --state-dir"
    assert said("list") == (0, nowhere)
    assert said("revoke", "ana")[1].startswith(nowhere)
    default = place.folder / "nodes" / "coordinatord"
    done = run(BIN / "coordinatord", "token", "new", environ=place.environ)
    refused = f"coordinatord: no coordinatord has run with {default}: give --state-dir, under systemd"
    assert (done.returncode, done.stdout, done.stderr.startswith(refused)) == (66, "", True)
    made = [folder for folder in (place.state, default) if folder.exists()]
    assert not made, "it may be the wrong directory, so nothing is made there"
    of_unit = place.environ | {"STATE_DIRECTORY": str(place.folder / "of_unit")}  # as for ExecStartPre=
    assert run(BIN / "coordinatord", "token", "new", environ=of_unit).returncode == 0
    coordinator = place.coordinator()
    place.token("new", "--name", "ana")
    place.token("new", "--name", "ben")
    assert said("revoke", "ana") == (0, "")
    coordinator.signal(signal.SIGTERM)
    coordinator.wait()
    code, text = said("revoke", "ben")
    assert code == 0
    assert f"ben is revoked in {place.state}, which no coordinatord uses at present" in text
