"""The Dockerfile and the compose file agree with the programs; their commands run. No image is built here."""

import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
import yaml

from coordinatord.commands.delayed_end import CLOSE_MARGIN_S
from coordinatord.config import subcommands
from coordinatord.config.serve_flags import ServeConfig
from coordinatord.core.keeping.write_plan import END_S
from coordinatord.protocol.access_token import Role, parse_tokens
from coordinatord.protocol.fields import DEFAULT_PORT
from nodeclient.config.join_config import JoinConfig
from nodeclient.config.parse import parse
from nodeclient.shell.stop_extension import LEAVE_MARGIN_S
from tests.deploy.manifests import DEPLOY, INIT, KUBERNETES, ROOT, with_script_of_this_host
from tests.support.cluster import STDLIB_PYTHON, Coordinator
from tests.support.programs import BIN, clean_environ, run

DOCKERFILE = DEPLOY / "Dockerfile"
COMPOSE = DEPLOY / "compose.yaml"

USER = "10001:10001"


class Instruction(NamedTuple):
    """A line of a Dockerfile, without its continuation."""

    word: str
    rest: str


@cache
def stages() -> dict[str, list[Instruction]]:
    """Return the instructions of each stage with those of the stage that it builds on before them."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, list[Instruction]] = {}
    here: list[Instruction] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            here = found[name] = list(found.get(base, ()))
        here.append(Instruction(word, rest.strip()))
    return found


def last(stage: str, word: str) -> str:
    """Return the argument of an instruction for a stage in the end."""
    return [instruction.rest for instruction in stages()[stage] if instruction.word == word][-1]


def compose() -> dict[str, Any]:
    """Return the compose file as data."""
    content: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return content


def project() -> dict[str, Any]:
    """Return the project's own description."""
    content: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return content


def kept(path: str) -> bool:
    """Whether .dockerignore leaves a file or directory of the root to the build."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    keeps = True
    for rule in rules:
        if fnmatch(path, rule.lstrip("!")):
            keeps = rule.startswith("!")
    return keeps


@pytest.mark.parametrize(
    ("stage", "program"), [("coordinatord", "coordinatord"), ("worker", "nodeclient"), ("demo", "nodeclient")]
)
def test_an_image_runs_its_program_without_a_shell_and_not_as_root(stage: str, program: str) -> None:
    # The exec form is JSON: no shell stands between SIGTERM and the program.
    assert json.loads(last(stage, "ENTRYPOINT")) == [*INIT, program]
    assert program in project()["scripts"]
    assert last(stage, "USER") == USER
    assert last(stage, "STOPSIGNAL") == "SIGTERM"


def test_every_image_has_the_one_base_and_names_it() -> None:
    bases = {rest.partition(" AS ")[0] for word, rest in itertools.chain(*stages().values()) if word == "FROM"}
    assert bases - stages().keys() == {"${PYTHON_IMAGE}"}
    for stage in ("coordinatord", "worker", "demo"):
        words = stages()[stage]
        label = words.index(Instruction("LABEL", "org.opencontainers.image.base.name=${PYTHON_IMAGE}"))
        assert Instruction("ARG", "PYTHON_IMAGE") in words[:label], "before it the variable is empty in a stage"


def test_what_is_copied_exists_and_is_sent_to_docker() -> None:
    copied = {
        source
        for instructions in stages().values()
        for word, rest in instructions
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    assert copied >= set(project()["scripts"])
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert [name for name in copied if not kept(name)] == []
    assert [name for name in (".git", ".venv", "tests", "secret.env") if kept(name)] == []


def test_versions_are_those_of_the_tests_and_the_base_has_a_digest() -> None:
    image = next(instruction.rest for instruction in _arguments() if instruction.rest.startswith("PYTHON_IMAGE="))
    [version] = re.findall(r"python:([\d.]+)-slim-\w+@sha256:[0-9a-f]{64}$", image)
    assert f"Programming Language :: Python :: {version}" in project()["classifiers"]
    [torch] = re.findall(r"^TORCH +:= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert Instruction("ARG", f"TORCH={torch.removesuffix('+cpu')}") in stages()["worker"]


def _arguments() -> list[Instruction]:
    text = DOCKERFILE.read_text()
    return [Instruction("ARG", rest) for rest in re.findall(r"^ARG (.*)$", text, re.MULTILINE)]


def variables(stage: str) -> dict[str, str]:
    """Return the variables of an image."""
    return dict(word.split("=", 1) for word in last(stage, "ENV").split())


def test_coordinatord_keeps_its_state_in_the_volume() -> None:
    read = subcommands.parse([], variables("coordinatord"))
    assert isinstance(read, ServeConfig)
    volume = last("coordinatord", "VOLUME")
    assert (str(read.state_dir), last("coordinatord", "EXPOSE")) == (volume, str(read.port))
    [made] = [instruction.rest for instruction in stages()["coordinatord"] if instruction.rest.startswith("install ")]
    assert made.split()[-1] == volume
    assert f"{volume}" in {mount.partition(":")[2] for mount in compose()["services"]["coordinatord"]["volumes"]}
    assert Path(variables("coordinatord")["XDG_CONFIG_HOME"]).is_relative_to(volume), "tokens last as long as the state"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["secured", "insecure", "client certificates"])
def test_the_health_check_says_how_it_is(kind: str, tmp_path: Path) -> None:
    program, script = json.loads(last("coordinatord", "HEALTHCHECK").partition("CMD ")[2])
    assert program == "python"
    [copied] = [
        instruction.rest.split()
        for instruction in stages()["coordinatord"]
        if instruction.word == "COPY" and "--from" not in instruction.rest
    ]
    assert copied[1] == script

    def check(port: int) -> int:
        environ = {"COORDINATORD_PORT": str(port)}
        done = subprocess.run([sys.executable, ROOT / copied[0]], env=environ, check=False, capture_output=True)
        return done.returncode

    authorities = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(authorities))
    flags = ("--tls-client-ca", str(authorities)) if kind == "client certificates" else ()
    with Coordinator(*flags, home=None if kind == "insecure" else tmp_path) as coordinator:
        assert check(coordinator.port) == 0
    assert check(coordinator.port) == 1
    assert f'"COORDINATORD_PORT", "{DEFAULT_PORT}"' in (ROOT / copied[0]).read_text()


@pytest.mark.slow
def test_no_example_lets_everybody_in() -> None:
    files = [path for path in (*DEPLOY.rglob("*"), *(ROOT / "systemd").iterdir()) if path.is_file()]
    lines = [line for path in files for line in path.read_text().splitlines()]
    assert [line for line in lines if "INSECURE" in line.upper() and not line.lstrip().startswith("#")] == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("sh") is None, reason="needs sh")
def test_compose_hands_a_token_to_the_nodes_and_the_image_one_to_commands(tmp_path: Path) -> None:
    """Run the service `token` itself, with directories of this machine as its volumes."""
    services = compose()["services"]
    service = services["token"]
    volumes = dict(mount.split(":", 1) for mount in service["volumes"])
    assert volumes["state"] == variables("coordinatord")["COORDINATORD_STATE_DIR"]
    state, handed = tmp_path / "state", tmp_path / "handed"
    inside = {volumes["state"]: state, volumes["token"]: handed}

    def outside(path: str) -> str:
        return next(path.replace(place, str(own)) for place, own in inside.items() if path.startswith(place))

    home = Path(outside(variables("coordinatord")["XDG_CONFIG_HOME"]))
    handed.mkdir()
    with Coordinator(state_dir=state, home=home) as coordinator:
        environ = clean_environ(COORDINATORD_STATE_DIR=str(state))
        assert service["entrypoint"][: len(INIT)] == INIT
        [script] = service["command"]
        command = [*service["entrypoint"][len(INIT) :], script.replace(volumes["token"], str(handed))]
        for _ in range(2):  # as `docker compose up` does each time
            done = run(*command, environ=environ)
            assert (done.returncode, done.stderr) == (0, "")
        for name in ("node1", "node2", "node3"):
            node = services[name]
            assert f"token:{volumes['token']}:ro" in node["volumes"]
            file = outside(node["environment"]["NODECLIENT_TOKEN_FILE"])
            [token] = parse_tokens(Path(file).read_text())
            assert token.role is Role.JOIN
        join = ("join", "--coord", coordinator.endpoint, "--", *STDLIB_PYTHON, "-c", "")
        assert run(BIN / "nodeclient", *join, environ={**environ, "NODECLIENT_TOKEN_FILE": file}).returncode == 0
        asked = run(BIN / "nodeclient", "status", "--coord", coordinator.endpoint, environ=coordinator.environ)
        assert "succeeded" in asked.stdout, asked.stderr


def test_compose_starts_three_nodes_that_find_the_coordinator() -> None:
    services = compose()["services"]
    nodes = {name: service for name, service in services.items() if name.startswith("node")}
    assert [service["hostname"] for service in nodes.values()] == list(nodes)
    for service in nodes.values():
        read = parse(with_script_of_this_host(service["command"]), {"PATH": str(BIN)})
        assert isinstance(read, JoinConfig)
        [coordinator] = read.coordinators
        assert (coordinator.host in services, coordinator.port) == (True, DEFAULT_PORT)
        assert read.spec.nodes_max == len(nodes)
        assert int(service["stop_grace_period"].removesuffix("s")) >= read.stop_timeout_s + LEAVE_MARGIN_S
        stays_s = read.stop_timeout_s + END_S + CLOSE_MARGIN_S
        assert int(services[coordinator.host]["stop_grace_period"].removesuffix("s")) >= stays_s
        [script] = [word for word in service["command"] if word.endswith(".py")]
        checkpoint = read.command[-1].partition("=")[2]
        assert f"{last('demo', 'WORKDIR')}/{script}" == f"/examples/{script}"
        assert (ROOT / "examples" / script).exists()
        volume = next(volume for volume in service["volumes"] if volume.startswith("checkpoints:"))
        assert Path(checkpoint).parent == Path(volume.partition(":")[2])
        assert volume.partition(":")[0] in compose()["volumes"]
        # A fresh volume has the owner of what the image has at its place.
        made = [instruction.rest for instruction in stages()["demo"] if "install --directory" in instruction.rest][-1]
        assert made.split()[-1] == str(Path(checkpoint).parent)
        assert "--owner=10001" in made


def test_all_builds_name_stages_and_arguments_that_there_are() -> None:
    arguments = {instruction.rest.partition("=")[0] for instruction in _arguments()}
    services = compose()["services"].values()
    built = {service["image"] for service in services if "build" in service}
    assert {service["image"] for service in services} == built
    for service in services:
        if "build" not in service:
            continue
        build = service["build"]
        assert (COMPOSE.parent / build["context"] / build["dockerfile"]).resolve() == DOCKERFILE
        assert build["target"] in stages()
        assert build.get("args", {}).keys() <= arguments
    for file in (DOCKERFILE, DEPLOY / "README.md", *KUBERNETES.rglob("*.yaml")):
        for command in re.findall(r"docker build ((?:.*\\\n)*.*)", file.read_text()):
            words = shlex.split(re.sub(r"\\\n# *", "", command), comments=True)
            assert words[words.index("--target") + 1] in stages()
            given = [words[at + 1] for at, word in enumerate(words) if word == "--build-arg"]
            assert {argument.partition("=")[0] for argument in given} <= arguments
