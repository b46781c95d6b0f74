"""The first start and later ones: key, certificate and first tokens, and where they are left."""

import logging
import ssl
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from threading import Barrier

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coordinatord.commands.token import change_tokens
from coordinatord.config.subcommands import parse
from coordinatord.config.token_flags import TokenConfig
from coordinatord.protocol.access_token import Role, parse_token, parse_tokens
from coordinatord.runtime.local_time import now
from coordinatord.runtime.pinned_tls import CertificateError, base32_of, pin_of, server_context
from coordinatord.runtime.private_files import PrivateFileError, locked_directory, read_private
from coordinatord.security.identity import IdentityError, own_identity
from coordinatord.security.setup import FIRST_TOKENS, FOLDER, PIN, NoTokensDirectoryError, Security, SecuritySettings
from coordinatord.security.token_store import FIRST_NAMES, TOKENS, TokenStore, find_by_secret, valid_names
from tests.support.programs import NO_HOME, wait_until
from tests.support.secured import add_token, secured

START = datetime(2020, 1, 1, tzinfo=UTC)
"""When certificates begin to be valid."""

HOMELESS = {"XDG_CONFIG_HOME": NO_HOME}


def opened(folder: Path | None, environ: dict[str, str] = HOMELESS, **own: Path) -> Security:
    security = Security(SecuritySettings(folder, **own), environ, lambda: 0.0)
    security.make_first_tokens()
    return security


def test_the_first_start_makes_all_and_the_next_keeps_it(tmp_path: Path) -> None:
    ours = secured(tmp_path)
    folder = tmp_path / "state" / FOLDER
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["certificate.pem", "key.pem", "tokens.json"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    left = tmp_path / "config" / "coordinatord" / "tokens" / ours.security.pin
    assert stat.S_IMODE(left.stat().st_mode) == 0o600
    before = left.read_text()
    assert {token.role for token in parse_tokens(before)} == {Role.JOIN, Role.ADMIN}
    again = secured(tmp_path)
    assert again.security.pin == ours.security.pin
    assert left.read_text() == before
    assert {token.name for token in ours.store.tokens} == {"first-join", "first-admin"}


def test_a_token_that_was_made_before_the_first_start_takes_the_place_of_no_other(tmp_path: Path) -> None:
    add_token(TokenStore(tmp_path), "a" * 52, Role.JOIN, "nodes")
    config = tmp_path / "config"
    security = opened(tmp_path, {"XDG_CONFIG_HOME": str(config)})
    assert [token.name for token in security.token_store.tokens] == ["nodes", "first-join", "first-admin"]
    assert (config / "coordinatord" / "tokens" / security.pin).exists()
    assert security.token_store.tokens == opened(tmp_path).token_store.tokens, "the next start makes no more"


def test_first_tokens_that_were_revoked_do_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinatord.security.token_store.TOKENS_MAX", 3)
    store = opened(tmp_path).token_store
    names = [*FIRST_NAMES, "a", "b", "c"]
    for name in names:
        if name not in FIRST_NAMES:
            add_token(store, "a" * 52, Role.JOIN, name)
        store.revoke(name)
    tokens = opened(tmp_path).token_store.tokens
    assert [token.name for token in tokens] == [*FIRST_NAMES, "c"]
    assert not valid_names(tokens)


def test_a_first_start_that_cannot_leave_the_tokens_makes_them_next_time(tmp_path: Path) -> None:
    blocked = tmp_path / FIRST_TOKENS
    blocked.mkdir()
    with pytest.raises(PrivateFileError, match="cannot be written"):
        opened(tmp_path)
    blocked.rmdir()
    security = opened(tmp_path)
    known = security.token_store.tokens
    assert [find_by_secret(known, token.secret) for token in parse_tokens(blocked.read_text())] == [*known]


def test_a_start_that_ends_before_the_first_tokens_are_recorded_has_handed_them_out(tmp_path: Path) -> None:
    """The other order could leave a record of tokens that nobody has, and no later start would make others."""
    own_identity(tmp_path)
    with ThreadPoolExecutor(1) as threads, locked_directory(tmp_path):
        started = threads.submit(opened, tmp_path)
        handed = wait_until("the first tokens", lambda: read_private(tmp_path / FIRST_TOKENS))
        assert not (tmp_path / TOKENS).exists()
    known = started.result().token_store.tokens
    assert [find_by_secret(known, token.secret) for token in parse_tokens(handed)] == [*known]


def test_the_pin_is_that_of_the_key(tmp_path: Path) -> None:
    ours = secured(tmp_path)
    certificate = x509.load_pem_x509_certificate((tmp_path / "state" / FOLDER / "certificate.pem").read_bytes())
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest = sha256(certificate.public_key().public_bytes(*form)).digest()
    assert ours.security.pin == base32_of(digest)
    whole = certificate.public_bytes(serialization.Encoding.DER)
    assert pin_of(whole) == ours.security.pin
    for end in range(200):
        with pytest.raises(CertificateError):
            pin_of(whole[:end])


def test_without_a_home_the_tokens_stay_in_the_state_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path)
    handed = tmp_path / FIRST_TOKENS
    assert (
        f"{handed}: operators name it by --token-file; for nodes elsewhere, which may only join, make one"
        in caplog.text
    )
    assert caplog.text.rstrip().endswith(f"coordinatord token new --state-dir {tmp_path.parent} --output FILE")
    for token in parse_tokens(handed.read_text()):
        assert token.secret not in caplog.text


def test_there_has_to_be_a_place_for_the_tokens() -> None:
    with pytest.raises(NoTokensDirectoryError, match="give --state-dir"):
        opened(None)


def test_half_of_the_files_is_no_first_start(tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / "key.pem").unlink()
    with pytest.raises(PrivateFileError, match=r"key\.pem is missing: put it back"):
        opened(tmp_path)


def test_a_first_start_that_was_killed_is_gone_on_with(tmp_path: Path) -> None:
    before = opened(tmp_path).pin
    (tmp_path / "certificate.pem").unlink()  # it is written last
    assert opened(tmp_path).pin == before
    assert pin_of(ssl.PEM_cert_to_DER_cert((tmp_path / "certificate.pem").read_text())) == before


def test_a_key_that_is_damaged_gets_no_certificate(tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / "certificate.pem").unlink()
    (tmp_path / "key.pem").write_text("no key")
    with pytest.raises(PrivateFileError, match=r"key\.pem is no key that coordinatord has made"):
        opened(tmp_path)


def test_all_that_begin_at_once_have_one_key(tmp_path: Path) -> None:
    together = Barrier(4)

    def begin(_: int) -> str:
        context = server_context()
        together.wait()
        return own_identity(tmp_path).load_into(context)

    with ThreadPoolExecutor(4) as threads:
        pins = set(threads.map(begin, range(4)))
    assert pins == {own_identity(tmp_path).load_into(server_context())}


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / "key.pem").chmod(0o644)
    with pytest.raises(PrivateFileError, match="others may read"):
        opened(tmp_path)


def _organisation(folder: Path, expires_at: datetime | None = None, begins_at: datetime = START) -> tuple[Path, Path]:
    issued = trustme.CA().issue_cert("coord.example", not_before=begins_at, not_after=expires_at)
    certificate, key = folder / "own.pem", folder / "own.key"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    return certificate, key


@pytest.mark.parametrize(
    ("damaged", "why"), [(True, "damaged, or not in PEM"), (False, "the key is of another certificate")]
)
def test_a_key_that_does_not_fit_is_refused_in_plain_words(tmp_path: Path, why: str, *, damaged: bool) -> None:
    certificate, key = _organisation(tmp_path)
    if damaged:
        key.write_text("junk")
    else:
        trustme.CA().issue_cert("coord.example").private_key_pem.write_to_path(key)
    with pytest.raises(IdentityError, match=rf"own\.pem with the key .*own\.key: {why}$"):
        opened(tmp_path / "s", certificate=certificate, key=key)
    with pytest.raises(IdentityError, match="none: No such file"):
        opened(tmp_path / "s", certificate=tmp_path / "none", key=key)


@pytest.mark.parametrize("name", ["own.pem", "own.key", f"s/{PIN}"])
def test_a_reload_that_fails_changes_nothing_and_a_later_one_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    authorities = tmp_path / "ca.pem"

    def renew() -> tuple[Path, Path]:
        trustme.CA().cert_pem.write_to_path(str(authorities))
        return _organisation(tmp_path)

    certificate, key = renew()
    security = opened(tmp_path / "s", certificate=certificate, key=key, client_authorities=authorities)
    before = security.context, security.pin
    renew()
    blocked, content = tmp_path / name, (tmp_path / name).read_text()
    blocked.unlink()
    blocked.mkdir()  # which can be neither read nor replaced
    security.reload()
    assert "not reloaded, nothing about TLS has changed" in caplog.text
    assert (security.context, security.pin) == before
    blocked.rmdir()
    blocked.write_text(content)
    security.reload()
    assert security.context is not before[0]
    assert before[1] != security.pin == pin_of(ssl.PEM_cert_to_DER_cert(certificate.read_text()))
    assert "the key of the certificate is another one now" in caplog.text


def test_a_reload_writes_nothing_that_has_not_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The disk may have become read-only."""
    security = opened(tmp_path)
    caplog.clear()
    (tmp_path / PIN).mkdir()  # which can be neither removed nor replaced
    security.reload()
    assert not caplog.records
    with pytest.raises(PrivateFileError, match="pin cannot be removed"):
        opened(tmp_path)


def test_new_tokens_are_for_the_key_that_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def pin_of_new() -> str:
        config = parse(["token", "new", "--state-dir", str(tmp_path)], {})
        assert isinstance(config, TokenConfig)
        change_tokens(config)
        return parse_token(capsys.readouterr().out.strip()).pin

    folder = tmp_path / FOLDER
    ours = opened(folder).pin
    assert pin_of_new() == ours
    certificate, key = _organisation(tmp_path)
    shown = opened(folder, certificate=certificate, key=key)
    assert pin_of_new() == shown.pin != ours
    _organisation(tmp_path)
    shown.reload()
    assert pin_of_new() == shown.pin
    assert opened(folder).pin == pin_of_new() == ours


@pytest.mark.parametrize("words", [("ana", "--state-dir", "d"), ("--state-dir", "d", "ana")])
def test_the_token_to_revoke_is_named_before_flags_or_behind_them(words: tuple[str, ...]) -> None:
    config = parse(["token", "revoke", *words], {})
    assert isinstance(config, TokenConfig)
    assert config.name == "ana"


def test_a_new_token_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    def make(output: Path) -> None:
        config = parse(["token", "new", "--state-dir", str(tmp_path), "--name", "ci", "--output", str(output)], {})
        assert isinstance(config, TokenConfig)
        change_tokens(config)

    opened(tmp_path / FOLDER)
    with pytest.raises(PrivateFileError, match="ci cannot be made"):
        make(Path("/proc/nowhere/ci/token"))
    make(tmp_path / "token")


def test_that_a_renewed_certificate_is_shown_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = _organisation(tmp_path)
    security = opened(tmp_path / "s", certificate=certificate, key=key)
    with caplog.at_level(logging.INFO):
        security.reload()
        assert "another certificate" not in caplog.text
        renewed = x509.load_pem_x509_certificate(certificate.read_bytes())
        signing = serialization.load_pem_private_key(key.read_bytes(), None)
        assert isinstance(signing, ec.EllipticCurvePrivateKey)
        builder = x509.CertificateBuilder(renewed.issuer, renewed.subject, signing.public_key(), 7)
        builder = builder.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC)).not_valid_after(datetime.max)  # noqa: DTZ901
        again = builder.sign(signing, hashes.SHA256())
        certificate.write_bytes(again.public_bytes(serialization.Encoding.PEM))
        security.reload()
    assert "another certificate is shown from now on" in caplog.text


def test_a_certificate_that_expires_is_warned_of_at_the_start_at_a_reload_and_once_a_day(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings(act: Callable[[], object]) -> int:
        caplog.clear()
        act()
        return caplog.text.count(f"the certificate {certificate} expires at ")

    def issue(left: timedelta) -> None:
        _organisation(tmp_path, now() + left)

    certificate, key = _organisation(tmp_path, now() + timedelta(days=13))
    clock = [0.0]
    settings = SecuritySettings(tmp_path / "s", certificate, key)
    security = Security(settings, HOMELESS, lambda: clock[0])
    assert caplog.text.count("expires at") == 1
    assert security.expires_at == pytest.approx((now() + timedelta(days=13)).timestamp(), abs=60)
    assert security.expires_soon_at < now().timestamp()
    assert warnings(security.warn_of_expiry) == 0
    clock[0] += 86_400
    assert warnings(security.warn_of_expiry) == 1
    issue(timedelta(days=-1))
    assert warnings(security.reload) == 1
    issue(timedelta(days=15))
    assert warnings(security.reload) == 0
    clock[0] += 86_400
    assert warnings(security.warn_of_expiry) == 0
    _organisation(tmp_path, now() + timedelta(hours=17), now() - timedelta(hours=7))
    assert warnings(security.reload) == 0, "it is of a program that renews it each day"
    _organisation(tmp_path, now() + timedelta(hours=7), now() - timedelta(hours=17))
    assert warnings(security.reload) == 1


def test_other_authorities_of_clients_leave_the_key_as_it_is(tmp_path: Path) -> None:
    authorities = tmp_path / "ca.pem"
    for folder in (None, tmp_path / "state"):
        trustme.CA().cert_pem.write_to_path(str(authorities))
        home = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
        security = opened(folder, home, client_authorities=authorities)
        pin = security.pin
        trustme.CA().cert_pem.write_to_path(str(authorities))
        security.reload()
        assert security.context.cert_store_stats()["x509_ca"] == 1
        assert security.pin == pin
