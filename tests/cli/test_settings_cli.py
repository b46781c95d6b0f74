"""Settings of the two programs: command lines, with what they refuse and what they import, and files."""

import os
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinatord.config import subcommands
from coordinatord.config.serve_flags import ServeConfig
from coordinatord.config.state_flags import StateConfig
from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.messages import JobSpec
from coordinatord.runtime.settings import SettingsError
from nodeclient.config.join_config import JoinConfig
from nodeclient.config.parse import SUBCOMMANDS, parse
from nodeclient.output.output_settings import ROTATIONS_KEPT, Rotation
from tests.support.programs import BIN, clean_environ, run

JOIN = ("join", "--coord", "127.0.0.1", "--", "true")
SCRIPT = __file__

HEAVY = "aiohttp|asyncio|torch|numpy|uvloop|hypothesis"
"""Modules that take a tenth of a second or more, which a person would wait for."""

WRONG_COORDINATORD = [
    (("--xyzzy",), "unrecognized arguments: --xyzzy (see"),
    (("--setle", "3"), "unrecognized arguments: --setle; did you mean --settle?"),
    (("--state_dri=x", "state"), "unrecognized arguments: --state_dri=x; did you mean --state-dir?"),
    (("state", "--jso"), "unrecognized arguments: --jso; did you mean --json?"),
    (("token", "list", "--port", "1"), "unrecognized arguments: --port 1 (see coordinatord token --help)"),
    (("token", "lst"), "invalid choice: 'lst'"),
    (("token", "new", "--role", "user"), "invalid choice: 'user'"),
    (("token", "new", "ana"), "not understood: ana; --name gives a new token its name"),
    (("token", "new", "--output", SCRIPT), f"--output {SCRIPT}: the file is not empty: name another one, or remove it"),
    (("token", "revoke"), "name the token that is to be revoked, as in coordinatord token revoke NAME"),
    (("--port", "70000"), "'70000' is no port: 0 to 65535"),
    (("--heartbeat", "0.0001"), "argument --heartbeat: '0.0001': expected seconds, at least 0.1 and at most 86400"),
    (("--settle", "0.002"), "argument --settle: '0.002': expected seconds, at least 0.1 and at most 86400"),
    (("--outage-grace", "0.3"), "argument --outage-grace/--outage_grace: '0.3': expected seconds, at least 0.5 "),
    (("--log-level", "loud"), "argument --log-level"),
    (("stray",), "there is no command 'stray', only state, store, replay, token; without one it serves"),
    (("status",), "commands about jobs are nodeclient's"),
    (("help", "stray"), "there is no command 'stray'"),
    (("--log-format", "xml"), "argument --log-format"),
    (("--state-dir", "/x", "--ephemeral"), "and not both"),
    (("--config", "/no/such.toml"), "the settings file /no/such.toml cannot be read: No such file or directory"),
]

WRONG_NODECLIENT = [
    ((), "the following arguments are required: COMMAND"),
    (("nonsense",), "there is no command 'nonsense' (see nodeclient --help)"),
    (("ps",), "there is no command 'ps'; did you mean status?"),
    (("top",), "there is no command 'top'; did you mean status --watch?"),
    (("--coord", "127.0.0.1", "status"), "--coord comes after the command: nodeclient status --coord 127.0.0.1 (see"),
    (("--coord=h", "--json", "logs", "gpt"), "comes after the command: nodeclient logs --coord=h --json gpt (see"),
    (("--watch", "--nnodes", "status"), "--watch comes after the command: nodeclient status --watch --nnodes (see"),
    (("--nnodes", "2", "main.py", "stop"), "come after run: nodeclient run --nnodes 2 main.py stop"),
    (("--standalone", "--nproc-per-node", "2", SCRIPT), f"nodeclient run --standalone --nproc-per-node 2 {SCRIPT}"),
    ((SCRIPT,), f"torchrun's flags and script come after run: nodeclient run {SCRIPT}"),
    (
        ("train.py",),
        "there is no command 'train.py'; torchrun's flags and script come after run: nodeclient run train.py",
    ),
    (("--nnodes=2", "a b.py"), "nodeclient run --nnodes=2 'a b.py'"),
    (("--verison",), "--verison is no flag of nodeclient itself; did you mean --version?"),
    (("statsu",), "there is no command 'statsu'; did you mean status?"),
    (("token", "list"), "token is a command of the other program: run coordinatord token on its host"),
    (("join", "--", "true"), "give --coord HOST[:PORT], or --standalone"),
    (("join", "--standalone", "--coord", "h", "--", "true"), "and not both"),
    (("join", "--coord", "127.0.0.1"), "give the command that each worker runs, after --"),
    (("join", "--coord", "h:0", "--", "true"), "'h:0' is no HOST[:PORT]"),
    (("join", "--nnodes", "3:2", *JOIN[1:]), "'3:2': expected 1 <= MIN <= MAX"),
    (("join", "--max-restarts", "99999999999", *JOIN[1:]), "argument --max-restarts"),
    (("join", "--nproc-per-node", "many", *JOIN[1:]), "nproc-per-node"),
    (("join", "--job-id", "x" * 129, *JOIN[1:]), "argument --job-id"),
    (("join", "--node-id", "a b", *JOIN[1:]), "'a b': expected a name without spaces and control characters"),
    (("join", "--stop-timeout", "-1", *JOIN[1:]), "argument --stop-timeout"),
    (("join", "--nproc", "2", *JOIN[1:]), "nproc"),
    (("join", "--coord", "127.0.0.1", "--", "no-such-command"), "the command 'no-such-command' was not found"),
    (("join", "--standalone", "--", "python", "nosuch.py"), "there is no script 'nosuch.py' in /"),
    (("join", "--standalone", "--", sys.executable, "-u", "-X", "dev", "/no/x.py", "1"), "no script '/no/x.py': is"),
    (("join", "--coord", "127.0.0.1", "--", "/no/such/file"), "the command '/no/such/file' was not found"),
    (("join", "--coord", "127.0.0.1", "--", "/etc"), "/etc"),
    (("join", "--coord", "127.0.0.1", "--", ""), "command"),
    (("join", "--nnodes", "2", "--node-rank", "2", *JOIN[1:]), "with --nnodes 2 ranks go from 0 to 1"),
    (("join", "--log-dir", "", *JOIN[1:]), "argument --log-dir"),
    (("join", "--numa-binding", "all", *JOIN[1:]), "argument --numa-binding"),
    (("join", "--outage-grace", "9", *JOIN[1:]), "it is a flag of coordinatord now"),
    (("join", "--rdzv_id=x", *JOIN[1:]), "what torchrun calls --rdzv-id is here --job-id"),
    (("join", "-m", "pkg", *JOIN[1:]), "`-- python -m MODULE`"),
    (("join", "--max-restart", "9", *JOIN[1:]), "did you mean --max-restarts?"),
    (("drain", "gpu1", "--cord", "h"), "not understood: --cord h; did you mean --coord?"),
    (("join", "--log-format", "xml", *JOIN[1:]), "argument --log-format"),
    (("join", "--config", "/no/such.toml", *JOIN[1:]), "the settings file /no/such.toml cannot be read"),
    (("join", "--health-check", "check 'all", *JOIN[1:]), "is no command line: No closing quotation"),
    (("join", "--health-check", " ", *JOIN[1:]), "expected a command, such as '/opt/check --all'"),
    (("run",), "required: SCRIPT (see"),
    (("run", "no-such-script.py"), "there is no script 'no-such-script.py' in /"),
    (("run", "python", "train.py"), "'python' is no script: leave it out, since Python runs the script, or give --no-"),
    (("run", sys.executable, SCRIPT), "is no script: leave it out"),
    (("run", "--run-path", "/no/script.py"), "there is no script"),
    (("run", "--no-python", "no-such-program"), "the command 'no-such-program' was not found"),
    (("run", "--no-python", "-m", "true"), "--module or --no-python, and not both"),
    (("run", "--nnodes", "2", SCRIPT), "give --rdzv-endpoint HOST[:PORT]"),
    (("run", "--nnodes", "2", "--node-rank", "1", SCRIPT), "or --master-addr"),
    (("run", "--nnodes", "2", "--rdzv-backend", "coordinatord", "--master-addr", "h", SCRIPT), "give --rdzv-endpoint"),
    (("run", "--nnodes", "2", "--rdzv-endpoint", "h:0", SCRIPT), "--rdzv-endpoint has port 0"),
    (("run", "--nnodes", "2", "--master-port", "0", SCRIPT), "--master-addr and --master-port: "),
    (("run", "--nnodes", "2", "--master-addr", "a b", SCRIPT), "--master-addr and --master-port: "),
    (("run", "--nnodes", "2", "--rdzv-endpoint", "h", "--node-rank", "2", SCRIPT), "ranks go from 0 to 1"),
    (("run", "--standalone", "--nnodes", "2", SCRIPT), "--standalone is for this host only"),
    (
        ("run", "--rdzv-backend", "zookeeper", SCRIPT),
        "--rdzv-backend zookeeper is not known here, only coordinatord, c10d",
    ),
    (("run", "--log-line-prefiks=${rank} > ", SCRIPT), "did you mean --log-line-prefix-template?"),
    (("launch", "--nosuchflag=a b", SCRIPT), "not understood: --nosuchflag=a b"),
    (("run", "--rdzv-id", "a" * 129, SCRIPT), "129 characters, expected at most 128"),
    (("run", "--rdzv-conf", "join_timeout=x", SCRIPT), "--rdzv-conf join_timeout: 'x': expected seconds"),
    (("run", "--rdzv-conf", "is_host=maybe", SCRIPT), "--rdzv-conf is_host: 'maybe': expected 1 or 0"),
    (("run", "--rdzv-conf", "store_type=file", SCRIPT), "--rdzv-conf store_type=file: "),
    (("run", "--nproc-per-node", "xpu", SCRIPT), "--nproc-per-node is 'xpu', but has to be a number"),
    (("run", "--event-log-handler", "scuba", SCRIPT), "argument --event-log-handler"),
    (("run", "--logs-specs", "mine", SCRIPT), "--logs-specs mine: such a class runs inside of torchrun"),
    (("run", "--shutdown-timeout", "-1", SCRIPT), "argument --shutdown-timeout"),
    (("run", "--use-env", SCRIPT), "it is a flag of nodeclient launch"),
    (("run", "--nonsense\n", SCRIPT), "not understood: --nonsense"),
    (("launch", "--no-python", "true"), "--no-python needs --use-env"),
    (
        ("logs", "--coord", "h", "--since", "10m"),
        "not understood: --since; the files have no times: --last says how much",
    ),
    (
        ("drain", "--coord", "h", *map(str, range(502)), "--dry-run"),
        "--dry-run takes 501 nodes at most, and these are 502",
    ),
    (("join", "--coord", "h", "--tls-ca", "/no/ca.pem", "--", "true"), "--tls_ca: '/no/ca.pem': No such file"),
    (("wait", "--coord", "h", "--timeout", "soon"), "'soon': expected a duration, such as 90, 15m, 2h or 3d"),
    (("status",), "required: --coord or the environment variable NODECLIENT_COORD"),
    (("status", "--coord", "h", "a", "b"), ": b (see"),
]

WRONG_ENVIRONMENT = [
    ("coordinatord", "COORDINATORD_PORT", "many"),
    ("nodeclient", "NODECLIENT_STANDALONE", "maybe"),
    ("nodeclient", "NODECLIENT_LOG_LEVEL", "loud"),
    ("nodeclient", "NODECLIENT_NPROC_PER_NODE", "many"),
    ("nodeclient run", "PET_STANDALONE", "2"),
    ("nodeclient run", "NODECLIENT_TOPOLOGY", "a b"),
    ("nodeclient run", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon"),
    ("nodeclient run", "TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGKILL"),
]


def check_refusal(
    parse: Callable[[tuple[str, ...], dict[str, str]], object], arguments: tuple[str, ...], words: str, **environ: str
) -> None:
    """Check that this is refused in one line with these words, which says where to look."""
    with pytest.raises(SettingsError) as refused:
        parse(arguments, {"PATH": os.defpath, **environ})
    assert words in str(refused.value)
    assert re.fullmatch(
        r".* \(see (coordinatord( token)?|nodeclient( join| run| launch| status| logs| wait| drain)?) --help\)",
        str(refused.value),
    )


@pytest.mark.parametrize(("arguments", "words"), WRONG_COORDINATORD)
def test_coordinatord_refuses_a_wrong_command_line_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    check_refusal(subcommands.parse, arguments, words)


@pytest.mark.parametrize(("arguments", "words"), WRONG_NODECLIENT)
def test_nodeclient_refuses_a_wrong_command_line_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    check_refusal(parse, arguments, words)


@pytest.mark.parametrize(("program", "variable", "value"), WRONG_ENVIRONMENT)
def test_a_wrong_value_in_the_environment_is_refused_by_the_name_of_its_variable(
    program: str, variable: str, value: str
) -> None:
    name = "nproc-per-node" if variable == "NODECLIENT_NPROC_PER_NODE" else variable
    if program == "coordinatord":
        check_refusal(subcommands.parse, (), name, **{variable: value})
    else:
        arguments = ("run", SCRIPT) if program == "nodeclient run" else JOIN
        check_refusal(parse, arguments, name, **{variable: value})


Help = Callable[..., str]


@pytest.fixture
def help_of(capsys: pytest.CaptureFixture[str]) -> Help:
    """Return the help that a command shows, of nodeclient unless it is said otherwise."""

    def show(*words: str, program: Callable[[list[str], dict[str, str]], object] = parse) -> str:
        with pytest.raises(SystemExit):
            program([*words, "--help"], {})
        return capsys.readouterr().out

    return show


@pytest.mark.parametrize(
    ("program", "command"), [(parse, command) for command in SUBCOMMANDS] + [(subcommands.parse, "token")]
)
def test_the_help_of_a_command_says_what_it_does_with_an_example_and_its_exit_codes(
    program: object, command: str, help_of: Help
) -> None:
    _, what, *_, last = help_of(command, program=program).split("\n\n")
    assert re.fullmatch(r"[A-Z].*\.", what)
    assert re.match(
        rf"Example: (nodeclient|coordinatord) {command} .*\nExit codes: 0 .*docs/exit-codes.md", last, re.DOTALL
    )


@pytest.mark.parametrize("command", ["status", "stacks", "drain", "wait"])
def test_the_help_of_an_operators_command_ends_with_how_the_coordinator_is_reached(command: str, help_of: Help) -> None:
    *_, own, connection, _ = help_of(command).split("\n\n")
    assert own.startswith("options:\n")
    assert connection.startswith("connection to the coordinator:\n  --coord ")


def test_the_help_of_join_begins_with_what_most_jobs_need(help_of: Help) -> None:
    first = help_of("join").split("\nwhat most jobs need:\n")[1].split("\n\n")[0]
    flags = ["--coord", "--standalone", "--job-id", "--nnodes", "--nproc-per-node", "--max-restarts"]
    assert re.findall(r"^  (--[a-z-]+)", first, re.MULTILINE) == flags


@pytest.mark.parametrize("command", ["join", "run", "launch"])
def test_the_help_of_a_node_has_its_flags_below_headings(command: str, help_of: Help) -> None:
    help_text = help_of(command)
    headings = re.findall(r"^(\w[^:]*):$", help_text, re.MULTILINE)
    assert {"nodes and workers of the job", "times", "state that workers keep", "output of workers"} <= {*headings}
    unsorted = help_text.split("\noptions:\n")[1].split("\n\n")[0]
    assert {*re.findall(r"^  (-\S+)", unsorted, re.MULTILINE)} <= {"-h,", "--print-completion"}


@pytest.mark.parametrize(("program", "command"), [(subcommands.parse, ()), (parse, ("join",)), (parse, ("status",))])
def test_the_help_names_every_flag_once_and_its_variable(
    program: object, command: tuple[str, ...], help_of: Help
) -> None:
    shown = help_of(*command, program=program)
    flags = flags_of(shown)
    assert len(flags) == len(set(flags)) >= 2
    prefix = "NODECLIENT" if command else "COORDINATORD"
    for flag in flags:
        if flag not in {"--version", "--help", "--show-config", "--until-unused", "--step-down", "--print-completion"}:
            variable = f"{prefix}_{flag[2:].replace('-', '_').upper()}"
            assert re.search(rf"\[{variable}[],]", "".join(shown.split())), flag


@pytest.mark.parametrize(("command", "more"), [("run", set()), ("launch", {"--use-env"})])
def test_the_help_of_torchruns_command_lines_names_torchruns_variables(
    command: str, more: set[str], help_of: Help
) -> None:
    shown = help_of(command)
    words = "".join(shown.split())
    flags = flags_of(shown)
    assert len(flags) == len(set(flags)) >= 30
    without = {"--help", "--numa-binding", "--logs-specs", "--show-config", "--print-completion"} | more
    assert without - {"--help"} <= set(flags)
    for flag in set(flags) - without:
        name = flag[2:].replace("-", "_").upper()
        assert f"[PET_{name}" in words or f"[NODECLIENT_{name}]" in words, flag
    for flag in without:
        assert f"_{flag[2:].replace('-', '_').upper()}]" not in words


def flags_of(help_text: str) -> list[str]:
    """Return the flags that a help text begins lines with."""
    found = [word for line in help_text.splitlines() for word in line.split()[:1] if word.startswith("--")]
    return [flag.rstrip(",") for flag in found]


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [(["help"], ["--help"]), (["help", "{}"], ["{}", "--help"]), (["help", "{}", "x"], ["{}", "--help"])],
)
@pytest.mark.parametrize(("parse", "command"), [(parse, "status"), (subcommands.parse, "token")])
def test_the_word_help_shows_what_the_flag_shows(
    parse: Callable[[list[str], dict[str, str]], object],
    command: str,
    arguments: list[str],
    flags: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = []
    for line in (arguments, flags):
        with pytest.raises(SystemExit) as ended:
            parse([word.format(command) for word in line], {})
        shown.append((ended.value.code, capsys.readouterr().out))
    assert shown[0] == shown[1]
    assert shown[0][1].startswith("usage: ")


@pytest.mark.slow
@pytest.mark.parametrize("argv", [("coordinatord", "--nonsense"), ("nodeclient", "join")])
def test_the_programs_themselves_end_with_that_line_and_code(argv: tuple[str, ...]) -> None:
    ended = run(BIN / argv[0], *argv[1:])
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (64, "", 1), ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "foreign"),
    [
        (["-m", "nodeclient", "--help"], f"{HEAVY}|nodeclient.config.join|coordinatord.protocol.messages"),
        (["-m", "nodeclient", "join", "--help"], f"{HEAVY}|nodeclient.config.operate"),
        (["-m", "nodeclient", "run", "--help"], HEAVY),
        (
            ["-c", "from nodeclient import cli; from nodeclient.operate import status, client"],
            f"{HEAVY}|nodeclient.config.join|coordinatord.protocol.messages|coordinatord.hints",
        ),
        (["-c", "import nodeclient.cli, nodeclient.shell.node, nodeclient.shell.embedded_coordinator"], "torch|numpy"),
        (["-m", "coordinatord", "--help"], "torch|numpy|nodeclient|workerlib"),
    ],
)
def test_nothing_is_imported_that_is_not_needed(arguments: list[str], foreign: str) -> None:
    ended = run(sys.executable, "-X", "importtime", *arguments)
    assert ended.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert imported >= {"coordinatord.runtime"}
    assert not imported & set(foreign.split("|"))


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["join", "--standalone", "--", "true"], ["status", "--coord", "127.0.0.1:1"]])
def test_garbage_is_collected_once_all_is_imported(arguments: list[str]) -> None:
    main = "import gc; from nodeclient.cli import main; import atexit; atexit.register(lambda: print(gc.isenabled()))"
    assert run(sys.executable, "-c", f"{main}; main()", *arguments).stdout == "True\n"


@pytest.mark.slow
def test_a_slip_in_the_name_of_a_variable_is_said_at_the_start() -> None:
    environ = {
        "COORDINATORD_SETLE": "3",
        "NODECLIENT_MAX_RESTART": "3",
        "NODECLIENT_COMMAND": "python train.py",
        "COORDINATORD_JOB": "mnist",
    }
    nowhere = ("--ephemeral", "--host", "192.0.2.1")
    ended = run(BIN / "coordinatord", *nowhere, environ=clean_environ(**environ))
    assert ended.returncode == 71
    first, *_ = ended.stderr.splitlines()
    slip = "environment variable COORDINATORD_SETLE has no effect: did you mean COORDINATORD_SETTLE?"
    assert slip in first
    assert ended.stderr.count("has no effect") == 1
    node = parse(["join", "--standalone", "--", "true"], {**os.environ, **environ})
    assert isinstance(node, JoinConfig)
    [remark] = [remark for remark in node.remarks if "has no effect" in remark]
    assert remark == "environment variable NODECLIENT_MAX_RESTART has no effect: did you mean NODECLIENT_MAX_RESTARTS?"


SYSTEMD = Path(__file__).parents[2] / "systemd"

COMMAND = "command = ['true']\n"


def serve(folder: Path, text: str, *flags: str, **environ: str) -> ServeConfig:
    (folder / "c.toml").write_text(text)
    found = subcommands.parse(["--config", str(folder / "c.toml"), *flags], environ)
    assert isinstance(found, ServeConfig)
    return found


def join(folder: Path, text: str, *arguments: str, front_end: str = "join", **environ: str) -> JoinConfig:
    (folder / "n.toml").write_text(text)
    names = {"PATH": os.defpath, "NODECLIENT_CONFIG": str(folder / "n.toml"), **environ}
    found = parse([front_end, *arguments], names)
    assert isinstance(found, JoinConfig)
    return found


def test_a_coordinator_takes_all_of_its_settings_from_a_file(tmp_path: Path) -> None:
    text = """
    host = "127.0.0.1"
    port = 29500
    state-dir = "/state"
    settle = 4
    heartbeat = 0.5
    outage_grace = 60
    log-level = "debug"
    log-format = "json"
    """
    found = serve(tmp_path, text)
    assert (found.host, found.port, found.state_dir) == ("127.0.0.1", 29500, Path("/state"))
    assert (found.policy.settle_s, found.policy.heartbeat_s, found.policy.outage_grace_s) == (4, 0.5, 60)
    assert (found.log_level, found.log_format, found.file) == ("debug", "json", tmp_path / "c.toml")


def test_where_state_is_kept_is_the_strongest_sources_to_say(tmp_path: Path) -> None:
    keeps, forgets = "state-dir = '/state'", "ephemeral = true"
    assert serve(tmp_path, forgets).state_dir is None
    assert serve(tmp_path, "", COORDINATORD_EPHEMERAL="1").state_dir is None
    assert serve(tmp_path, "", "--ephemeral", COORDINATORD_STATE_DIR="/other").state_dir is None
    assert serve(tmp_path, forgets, COORDINATORD_STATE_DIR="/other").state_dir == Path("/other")
    assert serve(tmp_path, forgets, COORDINATORD_EPHEMERAL="0", STATE_DIRECTORY="/its").state_dir == Path("/its")
    assert serve(tmp_path, keeps, "--ephemeral").state_dir is None
    assert serve(tmp_path, keeps, COORDINATORD_EPHEMERAL="1").state_dir is None
    assert serve(tmp_path, keeps, "--state-dir", "/flag", COORDINATORD_EPHEMERAL="1").state_dir == Path("/flag")
    for text, environ in ((f"{keeps}\n{forgets}", {}), ("", {"EPHEMERAL": "1", "STATE_DIR": "/other"})):
        with pytest.raises(SettingsError, match=r"give --state-dir, or --ephemeral to keep .*, and not both"):
            serve(tmp_path, text, **{f"COORDINATORD_{name}": value for name, value in environ.items()})


def test_a_state_directory_is_found_by_the_daemons_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("state-dir = '/state'")
    environ = {"COORDINATORD_CONFIG": str(tmp_path / "c.toml")}
    assert subcommands.parse(["state"], environ) == StateConfig(Path("/state"), json=False)


def test_a_node_takes_its_settings_and_its_command_from_a_file(tmp_path: Path) -> None:
    text = """
    coord = ["a:1", "b"]
    job-id = "mnist"
    nnodes = "2:4"
    nproc-per-node = 3
    max-restarts = 5
    redirects = 1
    local-ranks-filter = [0, 2]
    log-rotate = "100MB"
    signals-to-handle = ["SIGTERM", "SIGUSR1"]
    duplicate-stdout-filters = ["a,b", "c"]
    preload = ["torch", "my.package"]
    command = ["python3", "-c", "pass"]
    log-dir = "/logs"
    """
    found = join(tmp_path, text)
    assert found.coordinators == (Endpoint("a", 1), Endpoint("b", 29400))
    assert (found.job, found.spec, found.workers) == ("mnist", JobSpec(2, 4, 5, max_futile_rounds=3), 3)
    assert (found.output.terminal_ranks, found.output.rotation) == (
        frozenset({0, 2}),
        Rotation(100_000_000, ROTATIONS_KEPT),
    )
    assert found.output.stdout_filters == ("a,b", "c")
    assert (found.preload, found.command) == (("torch", "my.package"), ("python3", "-c", "pass"))
    assert found.remarks == (f"settings from {tmp_path / 'n.toml'}",)
    assert join(tmp_path, text, "--", "true").command == ("true",)


def test_where_a_node_finds_its_coordinator_is_the_strongest_sources_to_say(tmp_path: Path) -> None:
    alone, together = f"standalone = true\n{COMMAND}", f"coord = 'h'\n{COMMAND}"
    assert join(tmp_path, alone).standalone
    assert not join(tmp_path, alone, "--coord", "h").standalone
    assert join(tmp_path, alone, NODECLIENT_COORD="h").coordinators == (Endpoint("h", 29400),)
    assert join(tmp_path, together, NODECLIENT_STANDALONE="1").coordinators == ()
    assert join(tmp_path, together, NODECLIENT_STANDALONE="0").coordinators == (Endpoint("h", 29400),)


def test_the_command_lines_of_torchrun_take_a_file_in_their_own_words_and_ours(tmp_path: Path) -> None:
    text = "rdzv-endpoint = 'h:5'\nrdzv-conf = ['join_timeout=7', 'timeout=9']\nnnodes = 2\nshutdown-timeout = 3\n"
    found = join(tmp_path, text, __file__, "--config", "its.own", front_end="run")
    assert (found.coordinators, found.spec.nodes_max) == ((Endpoint("h", 5),), 2)
    assert (found.join_timeout_s, found.stop_timeout_s, found.abort_timeout_s) == (7, 3, 3)
    assert found.command[-2:] == ("--config", "its.own")
    assert join(tmp_path, "coord = 'h:6'\nnnodes = 2", __file__, front_end="launch").coordinators == (Endpoint("h", 6),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("coords = 'h'", "'coords' is no setting of nodeclient join; did you mean coord?"),
        ("nproc_per_nod = 2", "did you mean nproc-per-node?"),
        ("command = 'true'", "command: expected an array"),
        ("signals-to-handle = ['SIGFOO']", "signals-to-handle: 'SIGFOO' is no signal"),
        ("coord = ['a b']", "line 1: coord: 'a b' is no HOST[:PORT]"),
        ("standalone = true\ncommand = []", "give the command that each worker runs"),
    ],
)
def test_what_is_wrong_in_a_nodes_file_is_said_in_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as wrong:
        join(tmp_path, text)
    said = str(wrong.value)
    assert said.count("\n") == 0
    assert words in said


# Examples

Reader = Callable[[Path], object]


def _as_coordinator(file: Path) -> object:
    return subcommands.parse(["--config", str(file)], {"HOME": "/"})


def _as_node(file: Path) -> object:
    return parse(["join", "--config", str(file)], {"PATH": os.defpath})


@pytest.mark.parametrize(
    ("name", "read"), [("coordinatord.toml.example", _as_coordinator), ("nodeclient.toml.example", _as_node)]
)
def test_each_example_is_taken_as_it_is_and_with_each_line_that_it_leaves_out(
    name: str, read: Reader, tmp_path: Path
) -> None:
    text = (SYSTEMD / name).read_text()
    for line in text.splitlines():
        assert re.fullmatch(r"|# .+|#?[a-z-]+ = .+", line), f"systemd/{name} has the line {line!r}"
    file = tmp_path / "settings.toml"
    setting = re.compile(r"^#?([a-z-]+) = .+$", re.MULTILINE)
    lines = [match[0].removeprefix("#") for match in setting.finditer(text)]
    assert len(lines) >= 5
    file.write_text(text.replace("/opt/training/bin/python", "true"))
    assert read(file)
    for line in lines:
        names = tomllib.loads(line)
        keep = "" if "command" in names else COMMAND
        keep += "" if "coord" in names or "ephemeral" in names else "coord = 'h'\n"
        file.write_text((keep if read is _as_node else "") + line.replace("/opt/training/bin/python", "true"))
        assert read(file), line


# The programs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "more"),
    [
        (("coordinatord",), "state-dir = "),
        (("nodeclient", "join", "--coord", "h", "--", "true"), 'keep-memory = "25%"  # default'),
        (("nodeclient", "run", __file__), "rdzv-id = "),
    ],
)
def test_the_programs_show_what_is_in_force_as_a_file_that_they_take(
    argv: tuple[str, ...], more: str, tmp_path: Path
) -> None:
    def show(**environ: str) -> tuple[str, dict[str, Any]]:
        words = (
            (argv[0], *argv[1:2], "--show-config", *argv[2:]) if argv[0] == "nodeclient" else (*argv, "--show-config")
        )
        ended = run(BIN / words[0], *words[1:], environ=clean_environ(XDG_STATE_HOME=str(tmp_path), **environ))
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout, tomllib.loads(ended.stdout)

    text, found = show(NODECLIENT_LOG_FORMAT="json", COORDINATORD_LOG_FORMAT="json")
    assert more in text
    assert f'log-format = "json"  # environment variable {argv[0].upper()}_LOG_FORMAT' in text
    file = tmp_path / "shown.toml"
    file.write_text(text)
    again, same = show(NODECLIENT_CONFIG=str(file), COORDINATORD_CONFIG=str(file))
    assert same == found
    assert f"file {file}, line " in again
