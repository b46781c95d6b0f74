"""The content of `deploy/` as data: the manifests as kustomize builds them, and the environment of a container.

The tests say what is right about them.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"

KUSTOMIZATIONS = ("coordinator", "standby", "training", "overlays/cpu-demo", "overlays/gpu", "kubeflow")

Object = dict[str, Any]
"""A mapping of YAML, such as a manifest."""


@cache
def _built(directory: str) -> str:
    programs = (("kubectl", "kustomize"), ("kustomize", "build"))
    command = next((command for command in programs if shutil.which(command[0])), None)
    if command is None:
        pytest.skip("neither kubectl nor kustomize is installed")
    done = subprocess.run([*command, KUBERNETES / directory], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.dumps(list(yaml.safe_load_all(done.stdout)))


def built(directory: str) -> list[Object]:
    """Return the manifests of a kustomization, anew each time; skips the test where nothing can build them."""
    objects: list[Object] = json.loads(_built(directory))
    return objects


def only(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """Return the one object of a kind, and of a name where there are several."""
    [found] = [
        manifest for manifest in objects if manifest["kind"] == kind and name in {None, manifest["metadata"]["name"]}
    ]
    return found


def templates(objects: list[Object]) -> Iterator[Object]:
    """Yield the pod templates of all that makes pods."""
    for manifest in objects:
        if manifest["kind"] == "TrainingRuntime":
            for job in manifest["spec"]["template"]["spec"]["replicatedJobs"]:
                yield job["template"]["spec"]["template"]
        elif "template" in manifest.get("spec", {}):
            yield manifest["spec"]["template"]


def container(template: Object) -> Object:
    """Return a pod's only container."""
    [found] = template["spec"]["containers"]
    return dict(found)


def environment(objects: list[Object], box: Object, pod: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Kubernetes gives a container, `pod` being the fields that they may refer to."""
    environ: dict[str, str] = {}
    for source in box.get("envFrom", ()):
        environ |= only(objects, "ConfigMap", source["configMapRef"]["name"])["data"]
    for variable in box.get("env", ()):
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        environ[variable["name"]] = variable["value"] if field is None else pod[field]
    return environ


INIT = ["tini", "--"]
"""Process 1 of every image."""


def with_script_of_this_host(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of nodeclient with a script that is here: those of containers are not on this host."""
    return [__file__ if argument.endswith(".py") else argument for argument in arguments]


def command_line(box: Object) -> list[str]:
    """Return what a container runs under its init."""
    init, program = box["command"][: len(INIT)], box["command"][len(INIT) :]
    assert init == INIT
    return [*program, *box.get("args", ())]
