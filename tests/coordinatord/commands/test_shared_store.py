"""`coordinatord state --store`, `store copy` and `--step-down`, and which flags make sense together."""

import asyncio
import json
import os
import signal
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from coordinatord.cli import _run_command as run_command
from coordinatord.config.serve_flags import ServeConfig
from coordinatord.config.state_flags import ReplayConfig, StateConfig
from coordinatord.config.store_flags import CopyConfig, StepDownConfig
from coordinatord.config.subcommands import parse
from coordinatord.runtime.settings import SettingsError
from coordinatord.security.identity import own_identity
from coordinatord.security.setup import FOLDER
from coordinatord.store.database import Database
from coordinatord.store.directory import DATABASE, LOCK, StateDirectory
from coordinatord.store.etcd.leadership import Candidate
from coordinatord.store.interface import NothingStoredError, StoreError
from tests.support.etcd import LONG_LEASE_S, NOBODY, EtcdCluster, EtcdNamespace, gateway_to, needs_etcd
from tests.support.histories import a_join_of, an_opening, made_at
from tests.support.programs import BIN, run
from tests.support.raw_session import until

pytestmark = pytest.mark.slow


def a_directory(folder: Path) -> Path:
    """Make a state directory with two records."""
    folder.mkdir()
    with closing(Database.open(folder / DATABASE)) as database:
        database.append(made_at(1.0, an_opening(), a_join_of("n1")))
    return folder


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    return a_directory(tmp_path / "origin")


@pytest.fixture
def filled(space: EtcdNamespace, origin: Path) -> EtcdNamespace:
    assert run_command(CopyConfig(origin, space.place)) == 0
    return space


def test_a_command_that_has_printed_leaves_no_signal_changed(origin: Path, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGPIPE)
    assert run_command(CopyConfig(origin, tmp_path / "goal")) == 0
    assert signal.getsignal(signal.SIGPIPE) is before


@needs_etcd
def test_a_history_goes_to_etcd_and_back(
    space: EtcdNamespace, origin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    goal = tmp_path / "goal"
    assert run_command(CopyConfig(origin, space.place)) == 0
    assert capsys.readouterr().out == f"2 records copied from {origin} to {space.place}\n"
    with pytest.raises(StoreError, match="holds 2 records already"):
        run_command(CopyConfig(origin, space.place))
    assert run_command(CopyConfig(space.place, goal)) == 0
    before, after = Database.copy_of(origin / DATABASE), Database.copy_of(goal / DATABASE)
    assert (after.rows(), after.identity) == (before.rows(), before.identity)
    with pytest.raises(StoreError, match="holds 2 records already"):
        run_command(CopyConfig(space.place, goal))
    assert run_command(StateConfig(space.place, json=False)) == 0
    shown = capsys.readouterr().out
    assert f"{space.place}\nnobody leads; nobody stands by\n" in shown
    assert "job job  forming" in shown
    assert run_command(ReplayConfig(space.place, None, None, step=False, json=False)) == 0
    assert capsys.readouterr().out.startswith("job job, run e-1: 2 records\n")


@needs_etcd
def test_a_copy_in_a_directory_without_the_key_says_what_is_missing(
    filled: EtcdNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(CopyConfig(filled.place, tmp_path / "bare")) == 0
    assert "bare has no key: copy the folder security of a coordinator's state directory" in capsys.readouterr().err
    own_identity(tmp_path / "whole" / FOLDER)
    assert run_command(CopyConfig(filled.place, tmp_path / "whole")) == 0
    assert capsys.readouterr().err == ""


@needs_etcd
@pytest.mark.skipif(os.geteuid() != 0, reason="is about root")
def test_root_copies_for_a_service_with_a_user_of_its_own(filled: EtcdNamespace, tmp_path: Path) -> None:
    service, goal = 12345, tmp_path / "goal"
    goal.mkdir()
    os.chown(goal, service, service)
    assert run_command(CopyConfig(filled.place, goal)) == 0
    assert {(file.name, file.stat().st_uid) for file in goal.iterdir()} == {(DATABASE, service), (LOCK, service)}


@needs_etcd
def test_who_leads_is_shown_and_told_to_step_down(space: EtcdNamespace, tmp_path: Path) -> None:
    async def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(run, BIN / "coordinatord", *arguments)

    async def while_led() -> None:
        async with space.led() as (store, candidate):
            await store.append(made_at(1.0, an_opening()))
            found = json.loads((await ask("state", "--store", str(space.place), "--json")).stdout)
            assert (found["leader"]["endpoint"], found["standbys"], found["records"]) == ("127.0.0.1:29400", [], 1)
            assert 0 < found["lease_s"] <= LONG_LEASE_S
            assert found["bytes"] > 0
            refused = await ask("store", "copy", str(space.place), str(tmp_path / "anywhere"))
            words = f"{space.keys.prefix}/: another coordinatord has it (127.0.0.1:29400): end all that share it"
            assert words in refused.stderr
            alone = "127.0.0.1:29400 leads no more, but nobody stands by: it leads again in a moment\n"
            assert (await ask("--store", str(space.place), "--step-down")).stdout == alone
            await until(lambda: not candidate.may_act())

    asyncio.run(while_led())
    with pytest.raises(NothingStoredError, match="nobody leads"):
        run_command(StepDownConfig(space.place))


@needs_etcd
def test_nobody_leads_at_the_source_until_all_is_copied(
    filled: EtcdNamespace, etcd: EtcdCluster, origin: Path, tmp_path: Path
) -> None:
    (tmp_path / "alias").symlink_to(origin)
    with pytest.raises(StoreError, match="alias: another coordinatord has it"):
        run_command(CopyConfig(origin, tmp_path / "alias"))
    with pytest.raises(StoreError, match=r"another coordinatord has it \(store copy\)"):
        run_command(CopyConfig(filled.place, replace(filled.place, members=filled.place.members * 2)))
    assert run_command(CopyConfig(origin, EtcdNamespace(etcd).place)) == 0
    assert run_command(CopyConfig(filled.place, tmp_path / "goal")) == 0


@needs_etcd
def test_a_copy_wants_the_end_of_standbys_too(space: EtcdNamespace, origin: Path) -> None:
    async def copy_beside_a_standby() -> None:
        async with gateway_to(space.place) as gateway:
            standby = Candidate(gateway, space.keys, NOBODY, LONG_LEASE_S)  # which nobody renews
            await standby._enroll()
            words = (BIN / "coordinatord", "store", "copy", str(origin), str(space.place))
            refused = await asyncio.to_thread(run, *words)
            assert "a coordinatord stands by (127.0.0.1:29400): end all that share it first" in refused.stderr
            await standby.resign()

    asyncio.run(copy_beside_a_standby())
    assert run_command(CopyConfig(origin, space.place)) == 0


@needs_etcd
def test_a_daemon_that_uses_a_directory_is_named_whichever_way_is_copied(
    filled: EtcdNamespace, etcd: EtcdCluster, tmp_path: Path
) -> None:
    daemon = StateDirectory.claim(a_directory(tmp_path / "used"))
    for source, destination in ((daemon.path, EtcdNamespace(etcd).place), (filled.place, daemon.path)):
        with pytest.raises(StoreError, match=rf"used: another coordinatord has it \(process {os.getpid()}\)"):
            run_command(CopyConfig(source, destination))
    daemon.close()


@needs_etcd
def test_an_empty_namespace_is_named(space: EtcdNamespace) -> None:
    with pytest.raises(NothingStoredError, match="no coordinatord has kept state below"):
        run_command(StateConfig(space.place, json=True))


def test_a_directory_without_state_is_named(tmp_path: Path) -> None:
    with pytest.raises(NothingStoredError, match="no coordinatord has kept state in it"):
        run_command(CopyConfig(tmp_path / "nothing", tmp_path / "goal"))


def test_flags_make_a_place(tmp_path: Path) -> None:
    secret = tmp_path / "user"
    secret.write_text("alice:very:secret\n")
    flags = ["--store", "etcds://h1,h2/training", "--etcd-user-file", str(secret), "--lease", "7"]
    config = parse([*flags, "--ephemeral"], {})
    assert isinstance(config, ServeConfig)
    assert config.shared is not None
    access = config.shared.location.access
    assert (*access.read_user(), config.shared.lease_s) == ("alice", "very:secret", 7.0)
    assert "very:secret" not in repr(config)
    stepping = parse(["--store", "etcd://h1", "--step-down"], {"XDG_STATE_HOME": str(tmp_path)})
    assert isinstance(stepping, StepDownConfig)
    for words in (["state", "--store", "etcd://h1/x"], ["--store", "etcd://h1/x", "replay"]):
        reading = parse(words, {})
        assert isinstance(reading, StateConfig | ReplayConfig)
        assert str(reading.source) == "etcd://h1:2379/x"
    copying = parse(["store", "copy", "/var/lib/coordinatord", "etcd://h1"], {})
    assert isinstance(copying, CopyConfig)
    assert (str(copying.source), str(copying.destination)) == ("/var/lib/coordinatord", "etcd://h1:2379/coordinatord")


@pytest.mark.parametrize(
    ("advertised", "endpoint"),
    [
        ("h1", "h1:29400"),
        ("h1:8", "h1:8"),
        ("[fd00::1]", "[fd00::1]:29400"),
        ("fd00::1", "[fd00::1]:29400"),
    ],
)
def test_an_address_without_a_port_has_that_where_the_coordinator_listens(
    advertised: str, endpoint: str, tmp_path: Path
) -> None:
    """`--port` may be 0, and has no effect on a socket of systemd."""
    flags = ["--store", "etcd://h1", "--port", "0", "--advertise", advertised]
    found = parse(flags, {"XDG_STATE_HOME": str(tmp_path)})
    assert isinstance(found, ServeConfig)
    assert found.shared is not None
    assert found.shared.endpoint(29400) == endpoint


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--step-down"], "--step-down needs --store"),
        (["--store", "http://h1"], "is no etcd://HOST"),
        (["--store", "etcd://h1", "--etcd-cert", "c"], "--etcd-cert and --etcd-key belong together"),
        (["--store", "etcd://h1", "--etcd-ca", "c"], "are for TLS: write etcds://"),
        (["--store", "etcd://h1", "--etcd-user-file", "nowhere"], "nowhere cannot be read"),
        (["--store", "etcd://h1", "--until-unused"], "--until-unused is for a coordinator of one node"),
        (["--store", "etcd://h1", "--advertise", "http://h1"], "is no HOST"),
        (["--store", "etcd://h1", "--advertise", "h1:29400:1"], "is no HOST"),
        (["--store", "etcd://h1", "--advertise", "h1:0"], "is no HOST"),
        (["--store", "etcd://h1", "--advertise", "[::1]:65536"], "is no HOST"),
        (["--lease", "1"], "--lease"),
        (["store", "copy", "a", "a"], "FROM and TO are the same"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=words):
        parse(flags, {"XDG_STATE_HOME": str(tmp_path)})
