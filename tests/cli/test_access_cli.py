"""Coordinator, nodes and commands as they are by default: over TLS, for those with a token; and where secrets go."""

import json
import os
import re
import resource
import signal
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import PIPE

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from coordinatord.protocol.exit_codes import ExitCode
from tests.support.places import Place
from tests.support.programs import BIN, TIMEOUT_S, run, wait_until

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


SLEEPER = "import json, os, time; print(json.dumps({**os.environ, 'PID': os.getpid()}), flush=True); time.sleep(600)"
"""A worker that says what it was given, and waits."""

WITH_A_BUG = """
import sys
kind = sys.argv.pop(1)
from {module} import {machine}
handle = {machine}.handle
def stumble(self, event, now):
    if type(event).__name__ == kind:
        raise ZeroDivisionError
    return handle(self, event, now)
{machine}.handle = stumble
from {program}.cli import main
main()
"""
"""A program whose machine has a bug that an event of the kind in the first argument brings to light."""


def test_every_command_works_over_tls_and_the_events_name_the_token(place: Place, tmp_path: Path) -> None:
    place.coordinator("--settle", "0.1")
    flags = ("--node-id", "a", "--max-restarts", "3", "--log-dir", str(tmp_path / "logs"))
    node = place.node(*flags, script="import time; print('hello', flush=True); time.sleep(600)")
    node.await_line("hello")

    def output_of(*command: str) -> str:
        done = place.ask(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "running" in output_of("status")
    assert json.loads(output_of("status", "--json"))["jobs"][0]["job"] == "j"
    wait_until("its log", lambda: "hello" in output_of("logs", "j", "--rank", "0"))
    assert "j" in output_of("report", "j")
    link = output_of("page").strip()
    assert re.fullmatch(rf"https://{place.endpoint}/#enter=[a-z2-7]+", link)
    output_of("restart", "j", "--reason", "once more")
    node.await_line("starting round 2")
    output_of("drain", "gpu9", "--ahead", "--reason", "fan")
    output_of("undrain", "gpu9")
    output_of("stop", "j", "--reason", "enough")
    assert node.wait() == ExitCode.STOPPED
    before = output_of("events")
    output_of("forget", "j")
    acted = [line for line in f"{before}{output_of('events')}".splitlines() if "(token first-admin)" in line]
    for word in ("once more", "fan", "undrained", "enough", "forgotten"):
        assert any(word in line for line in acted), (word, acted)

    place.token("new", "--role", "read", "--name", "watchers", "--output", str(tmp_path / "watchers"))
    watcher = {**place.stranger, "NODECLIENT_TOKEN_FILE": str(tmp_path / "watchers")}
    assert place.ask("status", environ=watcher).returncode == 0
    assert "watchers has the role read, and this needs admin" in place.ask("stop", "j", environ=watcher).stderr
    place.token("revoke", "watchers")
    assert "the token watchers was revoked" in place.ask("status", environ=watcher).stderr


# Certificates of an organisation


class Organisation:
    """An authority, and the files of a coordinator that has a certificate of it."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.authorities, self.certificate, self.key = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
        self.authority.cert_pem.write_to_path(str(self.authorities))
        self.renew()

    def renew(self, name: str = "127.0.0.1") -> None:
        """Issue another certificate with another key."""
        issued = self.authority.issue_cert(name)
        issued.private_key_pem.write_to_path(str(self.key))
        issued.cert_chain_pems[0].write_to_path(str(self.certificate))

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of a program that shows the certificate."""
        return ("--tls-cert", str(self.certificate), "--tls-key", str(self.key))


def test_a_key_that_is_renewed_ends_no_session_and_tls_ca_goes_on(place: Place, tmp_path: Path) -> None:
    ours = Organisation(tmp_path)
    daemon = place.coordinator("--settle", "0.1", *ours.flags)
    trusting = ("--tls-ca", str(ours.authorities))
    staying = place.node("--node-id", "a", *trusting, script=SLEEPER)
    staying.await_line("starting round 1")
    ours.renew()
    daemon.signal(signal.SIGHUP)
    daemon.await_line("the key of the certificate is another one now: tokens of the old one no longer fit")

    joins = place.node("--node-id", "b", *trusting, script=SLEEPER)
    joins.await_line("starting round")
    assert "succeeded" not in place.ask("status", *trusting).stdout
    assert place.ask("status", *trusting).returncode == 0
    pinned = place.ask("status")
    assert (pinned.returncode, len(pinned.stderr.splitlines())) == (77, 1)
    assert "its key matches no token in" in pinned.stderr
    assert "looking for the coordinator" not in "\n".join(staying.lines), "its session has not ended"

    # It is found again after a restart, too, which ends all sessions.
    port = place.endpoint.rpartition(":")[2]
    daemon.stop()
    again = ("--host", "127.0.0.1", "--port", port, "--state-dir", str(place.state), *ours.flags)
    place.start(BIN / "coordinatord", *again).await_line("coordinatord listening")

    def states() -> dict[str, str]:
        [job] = json.loads(place.ask("status", "--json", *trusting).stdout)["jobs"]
        return {node["node"]: node["state"] for node in job["nodes"]}

    wait_until("both nodes", lambda: states() == {"a": "running", "b": "running"})


def test_who_shows_no_certificate_where_one_is_wanted_is_told_so(place: Place, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ours, other = Organisation(tmp_path), Organisation(tmp_path / "other")
    place.coordinator(*ours.flags, "--tls-client-ca", str(ours.authorities))
    own = tmp_path / "node.pem"
    ours.authority.issue_cert("gpu7").private_key_and_cert_chain_pem.write_to_path(str(own))
    for flags, words in (
        ((), "wants a certificate of this client: give --tls-cert and --tls-key"),
        (
            other.flags,
            r"does not trust \S+/other/cert\.pem, the certificate of this client: it is of another authority",
        ),
    ):
        for command in (("status",), ("drain", "gpu1")):
            done = place.ask(*command, *flags)
            assert re.search(words, done.stderr), done.stderr
            assert (done.returncode, len(done.stderr.splitlines())) == (77, 1)
        place.node(*flags).await_line(f"not let in: .*{words}")
    shown = ("--tls-cert", str(own), "--tls-key", str(own))
    assert place.node("--node-id", "gpu7", *shown).wait() == 0
    assert "succeeded" in place.ask("status", *shown).stdout
    assert place.ask("drain", "gpu1", "--ahead", *shown).returncode == 0


def test_another_authority_and_another_name_are_not_trusted(place: Place, tmp_path: Path) -> None:
    ours = Organisation(tmp_path)
    daemon = place.coordinator(*ours.flags)
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    (tmp_path / "empty.pem").write_text("")
    for file, words in (
        ("other.pem", "its certificate is not to be trusted: unable to get local issuer certificate"),
        ("empty.pem", r"empty\.pem cannot be used: damaged, or not in PEM: see --tls-ca and --tls-cert"),
    ):
        done = place.ask("status", "--tls-ca", str(tmp_path / file))
        assert re.search(words, done.stderr), done.stderr
        assert (done.returncode, len(done.stderr.splitlines())) == (77, 1)
    locked = serialization.BestAvailableEncryption(b"secret")
    key = serialization.load_pem_private_key(ours.key.read_bytes(), None)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "locked.pem").write_bytes(key.private_bytes(*form, locked))
    for file, words in (("locked.pem", "the key wants a password"), ("empty.pem", "damaged, or not in PEM")):
        done = place.ask("status", "--tls-cert", str(ours.certificate), "--tls-key", str(tmp_path / file))
        assert f"cert.pem with the key {tmp_path / file} cannot be used: {words}" in done.stderr
        assert (done.returncode, len(done.stderr.splitlines())) == (77, 1)
    ours.renew("elsewhere.example")
    daemon.signal(signal.SIGHUP)
    daemon.await_line("the key of the certificate is another one now")
    done = place.ask("status", "--tls-ca", str(ours.authorities))
    assert re.search(r"trusted: IP address mismatch, .* '127.0.0.1'; give --coord a name that it has$", done.stderr)


@contextmanager
def with_tls_1_2_alone(certificate: Path, key: Path) -> Iterator[str]:
    """Serve as a proxy that was set up years ago; yield the address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                context.wrap_socket(self.request, server_side=True).close()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_proxy_with_older_tls_is_named_with_what_to_do(place: Place, tmp_path: Path) -> None:
    ours = Organisation(tmp_path)
    place.coordinator()
    with with_tls_1_2_alone(ours.certificate, ours.key) as place.endpoint:
        older = "does not speak TLS 1.3: have the proxy there allow it, or pass TLS through"
        for flags, environ, words in (
            ((), place.environ, older),
            (("--tls-ca", str(ours.authorities)), place.environ, older),
            (("--insecure",), place.environ, "speaks TLS only: leave --insecure out"),
            ((), place.stranger, "wants a token, and there is none here"),
        ):
            done = place.ask("status", *flags, environ=environ)
            assert words in done.stderr
            assert (done.returncode, len(done.stderr.splitlines())) == (77, 1)
            place.node(*flags, environ=environ).await_line(f"not let in: .*{words}")


# Secrets


def limit_of_core(pid: int) -> str:
    """Return how large a core file of a process may be."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line.split()[4] for line in lines if line.startswith("Max core file size"))


@pytest.fixture
def core_files() -> Iterator[str]:
    """Let programs leave core files; yield how large these may be, as /proc has it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    yield "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def test_no_secret_is_where_others_look(place: Place, tmp_path: Path, core_files: str) -> None:
    """Not in command lines, environments, logs, the state directory, crash files; and core files are not written."""
    buggy = WITH_A_BUG.format(module="coordinatord.core.machine", machine="Coordinator", program="coordinatord")
    daemon = place.serve(sys.executable, "-c", buggy, "AdminRequested", "--log-level", "debug")
    join = place.token("new", "--name", "nodes")
    environ = {**place.stranger, "NODECLIENT_TOKEN": join, "XDG_STATE_HOME": str(tmp_path / "nodes")}
    buggy = WITH_A_BUG.format(module="nodeclient.core.agent", machine="Agent", program="nodeclient")
    flags = ("join", "--log-level", "debug", "--coord", place.endpoint, "--job-id", "j", "--", sys.executable, "-c")
    node = place.start(sys.executable, "-c", buggy, "LeaveRequested", *flags, SLEEPER, environ=environ)
    worker = json.loads(node.await_line(r"^(?:\[.*?\] )?(\{.*\})$")[1])
    assert "NODECLIENT_TOKEN" not in worker
    place.ask("status")
    place.ask("status", environ={**place.stranger, "NODECLIENT_TOKEN": f"{join}x"})
    code = place.ask("page").stdout.strip().partition("#enter=")[2]
    for variable in ("NODECLIENT_TOKEN_FILE", "NODECLIENT_TLS_CA"):
        assert "a token has no place here" in place.ask("status", environ={**place.stranger, variable: join}).stderr
    daemon.signal(signal.SIGHUP)

    shown = b""
    pids = [daemon.pid, node.pid, *node.leftovers()]
    assert worker["PID"] in pids
    for pid in pids:
        with suppress(OSError):  # it may have ended
            shown += b"".join((Path(f"/proc/{pid}") / name).read_bytes() for name in ("cmdline", "environ"))
    assert {limit_of_core(program.pid) for program in (daemon, node)} == {"1"}, "for no file, and no program"
    assert limit_of_core(worker["PID"]) == core_files, "the worker's are its user's"

    node.signal(signal.SIGTERM)
    node.wait()
    place.ask("drain", "x", "--ahead")
    daemon.wait()
    crashes = [path for path in tmp_path.rglob("*") if path.parent.name == "crashes"]
    assert len(crashes) == 2, "one of each program"
    secrets = [*place.secrets.values(), join.rpartition(".")[2], code]
    left = [path for path in (tmp_path / "config").rglob("*") if path.is_file()]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path not in left]
    texts = b"\n".join([shown, *files, *map(str.encode, (*node.lines, *daemon.lines))])
    errors = "\n".join(place.output[1::2])
    for secret in secrets:
        assert secret.encode() not in texts
        assert secret not in errors
