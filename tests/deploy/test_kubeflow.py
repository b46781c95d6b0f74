"""The runtime for Kubeflow Trainer: its schema knows every field, and its Job is the one that is tried without it."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from coordinatord.protocol.fields import DEFAULT_PORT
from nodeclient.config.join_config import JoinConfig
from nodeclient.config.parse import parse
from tests.deploy.manifests import (
    DEPLOY,
    Object,
    built,
    command_line,
    container,
    environment,
    only,
    templates,
    with_script_of_this_host,
)
from tests.support.programs import BIN

pytestmark = pytest.mark.slow

SCHEMAS: Object = json.loads(Path(__file__).with_name("kubeflow_trainer_2.3.0.json").read_text())
"""An excerpt of the resource definitions of Kubeflow Trainer; it says what was left out."""

KUBERNETES_OLDEST = "1.31"

POD = {
    "metadata.labels['jobset.sigs.k8s.io/jobset-name']": "mnist",
    "metadata.name": "mnist-node-0-1-x7k2p",
    "status.podIP": "10.1.2.3",
}
"""The fields of a pod of a TrainJob that is called mnist."""

OF_ITS_OWN = {"completions", "parallelism", "ttlSecondsAfterFinished"}
"""What Kubeflow or its JobSet sets in the Job."""


@pytest.fixture
def runtime() -> Object:
    """Build the runtime with kustomize."""
    return only(built("kubeflow"), "TrainingRuntime")


@pytest.fixture
def train_job() -> Object:
    """Read the example of a TrainJob from the README."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", (DEPLOY / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    [found] = [yaml.safe_load(block) for block in blocks if "kind: TrainJob" in block]
    return dict(found)


def strict(schema: Any) -> Any:
    """Return a schema that knows no other fields than those that it names, as `kubectl --validate=strict` does."""
    if isinstance(schema, list):
        return [strict(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {}
    return closed | {name: strict(member) for name, member in schema.items()}


def check(manifest: Object) -> None:
    """Validate an object of Kubeflow's. Raises `jsonschema.ValidationError`."""
    jsonschema.validate(manifest, strict(SCHEMAS[manifest["kind"]]))


def job_of(runtime: Object) -> Object:
    """Return what Kubeflow makes of the runtime, in the end: a Job."""
    [job] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "mnist-node-0"},
        "spec": job["template"]["spec"],
    }


def test_the_schema_knows_every_field(runtime: Object, train_job: Object) -> None:
    check(runtime)
    check(train_job)
    kubernetes_validate.validate(job_of(runtime), KUBERNETES_OLDEST, strict=True)


def test_kubeflow_finds_the_container_whose_fields_a_train_job_sets(runtime: Object, train_job: Object) -> None:
    """Kubeflow Trainer looks for these two names (its pkg/webhooks/trainingruntime_webhook.go and pkg/constants)."""
    [job] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    assert container(job["template"]["spec"]["template"])["name"] == "node"
    reference = train_job["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    assert train_job["metadata"]["namespace"] == runtime["metadata"]["namespace"]


def test_its_job_is_that_of_the_other_trainings(runtime: Object) -> None:
    job, usual = job_of(runtime), only(built("training"), "Job")
    assert job["spec"].keys() == usual["spec"].keys() - OF_ITS_OWN
    for field in job["spec"].keys() - {"template"}:
        assert job["spec"][field] == usual["spec"][field]
    [pod, usual_pod] = (manifest["spec"]["template"] for manifest in (job, usual))
    box, usual_box = container(pod), container(usual_pod)
    named = [variable for variable in box.pop("env") if variable["name"] != "NODECLIENT_JOB_ID"]
    assert named == usual_box.pop("env")
    assert box == usual_box
    pod["spec"].pop("containers")
    usual_pod["spec"].pop("containers")
    assert pod == usual_pod


def test_nodeclient_understands_the_commands_of_a_train_job(runtime: Object, train_job: Object) -> None:
    trainer = train_job["spec"]["trainer"]
    [template] = templates([runtime])
    box = container(template) | {"args": trainer["args"]}
    variables = environment([], box, POD) | {variable["name"]: variable["value"] for variable in trainer["env"]}
    host = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "mnist-node-0-1", "PATH": str(BIN)}
    program, *arguments = command_line(box)
    assert program == "nodeclient"
    assert variables.pop("NODECLIENT_NPROC_PER_NODE") == "gpu"
    node = parse(with_script_of_this_host(arguments), variables | host)
    assert isinstance(node, JoinConfig)
    assert [(coordinator.host, coordinator.port) for coordinator in node.coordinators] == [
        ("coordinatord", DEFAULT_PORT)
    ]
    assert (node.job, node.node, node.group_rank) == (train_job["metadata"]["name"], POD["metadata.name"], 1)
    assert node.spec.nodes_max == trainer["numNodes"]
