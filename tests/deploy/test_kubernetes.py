"""The Kubernetes manifests: they build, the API's schema knows every field, and what they say agrees with the programs.

No cluster is needed, nor asked; `test_containers_pods` runs the commands as the pods would.
"""

import json
import re
import signal
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from coordinatord.commands.delayed_end import CLOSE_MARGIN_S
from coordinatord.config import subcommands
from coordinatord.config.serve_flags import ServeConfig
from coordinatord.core.keeping.write_plan import END_S
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.fields import DEFAULT_PORT
from coordinatord.runtime.settings import SettingsError
from nodeclient.config.flags import STOP_TIMEOUT_S
from nodeclient.config.join_config import JoinConfig
from nodeclient.config.parse import parse
from nodeclient.shell.stop_extension import LEAVE_MARGIN_S
from tests.deploy.manifests import (
    DEPLOY,
    KUBERNETES,
    KUSTOMIZATIONS,
    Object,
    built,
    command_line,
    container,
    environment,
    only,
    templates,
    with_script_of_this_host,
)
from tests.support.cluster import Cluster, Coordinator
from tests.support.disks import fill, small_disk
from tests.support.exits_of_nodes import FOR_GOOD, LEFT, WORTH_ANOTHER_TRY, codes_of_nodes
from tests.support.programs import BIN, TIMEOUT_S, wait_until

pytestmark = pytest.mark.slow

OLDEST = "1.31"
"""What job.yaml says that it needs."""

OVERLAYS = ("overlays/cpu-demo", "overlays/gpu")

POD = {
    "metadata.labels['jobset.sigs.k8s.io/jobset-name']": "train",
    "metadata.name": "train-1-x7k2p",
    "status.podIP": "10.1.2.3",
}
"""The fields of a pod that its variables refer to."""


def _job(overlay: str) -> Object:
    return only(built(overlay), "Job")


def _node(overlay: str) -> JoinConfig:
    """Have nodeclient read the settings of a pod of the overlay, on a host of this kind with GPUs or without."""
    objects = built(overlay)
    box = container(only(objects, "Job")["spec"]["template"])
    variables = environment(objects, box, POD)
    assert variables.get("NODECLIENT_NPROC_PER_NODE", "gpu") == "gpu"
    host = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1", "PATH": str(BIN), "NODECLIENT_NPROC_PER_NODE": "2"}
    program, *arguments = command_line(box)
    assert program == "nodeclient"
    read = parse(with_script_of_this_host(arguments), variables | host)
    assert isinstance(read, JoinConfig)
    return read


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("overlay", [*OVERLAYS, "standby"])
def test_the_schema_knows_every_field(overlay: str, version: str) -> None:
    for manifest in built(overlay):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_every_file_belongs_to_a_kustomization() -> None:
    for file in KUBERNETES.rglob("*.yaml"):
        kustomization = file.with_name("kustomization.yaml")
        assert file == kustomization or file.name in kustomization.read_text()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nodeclient_understands_the_commands_of_the_pods(overlay: str) -> None:
    job = _job(overlay)
    node = _node(overlay)
    assert [(coordinator.host, coordinator.port) for coordinator in node.coordinators] == [
        ("coordinatord", DEFAULT_PORT)
    ]
    assert (node.job, node.node, node.group_rank) == ("train", POD["metadata.name"], 1)
    assert node.advertise_address == POD["status.podIP"]
    assert (node.spec.nodes_max, node.spec.max_restarts) == (job["spec"]["completions"], 3)
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    assert job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= node.stop_timeout_s + LEAVE_MARGIN_S


@pytest.mark.parametrize(
    "file", ["kubernetes/training/job.yaml", "kubernetes/kubeflow/training-runtime.yaml", "compose.yaml"]
)
def test_what_a_file_says_to_give_has_time_for_all_stages_and_the_disk(file: str) -> None:
    text = (DEPLOY / file).read_text()
    set_by_file = re.search(r'NODECLIENT_STOP_TIMEOUT, value: "(\d+)"', text)
    [said] = re.findall(r"give (\d+)", text)
    assert int(said) == (float(set_by_file[1]) if set_by_file else STOP_TIMEOUT_S) + LEAVE_MARGIN_S + END_S


@pytest.mark.parametrize("directory", ["coordinator", "standby"])
def test_the_coordinator_may_stay_for_as_long_as_its_nodes_need_it(directory: str) -> None:
    nodes = [_node(overlay).stop_timeout_s for overlay in OVERLAYS]
    pod = only(built(directory), "Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= max(nodes) + END_S + CLOSE_MARGIN_S


def test_coordinatord_understands_the_command_of_its_pod() -> None:
    objects = built("coordinator")
    box = container(only(objects, "Deployment")["spec"]["template"])
    program, *arguments = command_line(box)
    assert program == "coordinatord"
    read = subcommands.parse(arguments, environment(objects, box, POD))
    assert isinstance(read, ServeConfig)
    assert (read.port, read.policy.outage_grace_s) == (DEFAULT_PORT, 600)
    assert [str(read.state_dir)] == [mount["mountPath"] for mount in box["volumeMounts"]]


def test_two_coordinators_share_an_etcd_and_neither_has_a_volume() -> None:
    objects = built("standby")
    deployment = only(objects, "Deployment")["spec"]
    box = container(deployment["template"])
    read = subcommands.parse(command_line(box)[1:], environment(objects, box, POD))
    assert isinstance(read, ServeConfig)
    assert read.shared is not None
    assert read.shared.endpoint(read.port) == f"{POD['status.podIP']}:{DEFAULT_PORT}", "where a standby sends nodes to"
    assert deployment["replicas"] == 2
    assert [manifest["kind"] for manifest in objects if manifest["kind"] == "PersistentVolumeClaim"] == []
    state = str(read.state_dir)
    spread = deployment["template"]["spec"]["affinity"]["podAntiAffinity"]
    [apart] = spread["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"] == deployment["selector"]["matchLabels"]
    volumes = {volume["name"]: volume for volume in deployment["template"]["spec"]["volumes"]}
    assert volumes["state"] == {"name": "state", "emptyDir": {}}
    [keys] = deployment["template"]["spec"]["initContainers"]
    assert {mount["name"]: mount["mountPath"] for mount in keys["volumeMounts"]}["state"] == state
    told = (KUBERNETES / "standby" / "kustomization.yaml").read_text()
    [(secret, file)] = re.findall(r"create secret generic (\S+) --from-file=(\S+)=", told)
    assert volumes["keys"]["secret"]["secretName"] == secret
    assert keys["command"][-1] == f"--file=/keys/{file}"
    guard = only(objects, "NetworkPolicy", "coordinatord")["spec"]
    each_other, outside = guard["egress"]
    assert {port["port"] for port in outside["ports"]} == {member.port for member in read.shared.location.members} | {
        53
    }
    own = {"podSelector": deployment["selector"]}
    assert each_other == {"to": [own], "ports": [{"port": box["ports"][0]["name"]}]}, "a standby sends commands on"
    assert own in guard["ingress"][0]["from"]


def test_every_variable_that_is_set_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    helps = ""
    for read, arguments in ((subcommands.parse, ["--help"]), (parse, ["join", "--help"])):
        with pytest.raises(SystemExit):
            read(arguments, {})
        helps += capsys.readouterr().out
    for directory in KUSTOMIZATIONS:
        objects = built(directory)
        named = objects if any(manifest["kind"] == "ConfigMap" for manifest in objects) else built("coordinator")
        for template in templates(objects):
            given = environment(named, container(template), POD)
            assert [name for name in given if name not in {"HOME", "XDG_CONFIG_HOME"} and name not in helps] == []


@pytest.mark.parametrize("directory", KUSTOMIZATIONS)
def test_the_variables_of_services_stay_out(directory: str) -> None:
    """The variable of its own Service would give a coordinatord a port that is an URL."""
    service = only(built("coordinator"), "Service")["metadata"]["name"].upper()
    with pytest.raises(SettingsError, match=r"COORDINATORD_PORT.*is no port"):
        subcommands.parse([], {f"{service}_PORT": f"tcp://10.96.0.1:{DEFAULT_PORT}"})
    assert [template["spec"]["enableServiceLinks"] for template in templates(built(directory))] in (
        [False],
        [False] * 2,
    )


def test_ports_and_labels_lead_to_each_other() -> None:
    objects = built("overlays/cpu-demo")
    daemon, node = only(objects, "Deployment")["spec"], only(objects, "Job")["spec"]["template"]
    labels = daemon["template"]["metadata"]["labels"]
    [port] = container(daemon["template"])["ports"]
    assert port["containerPort"] == DEFAULT_PORT
    services = {found["metadata"]["name"]: found["spec"] for found in objects if found["kind"] == "Service"}
    for service in services.values():
        assert (service["selector"].items() <= labels.items(), daemon["selector"]["matchLabels"]) == (True, labels)
        assert service["ports"] == [{"name": port["name"], "port": DEFAULT_PORT, "targetPort": port["name"]}]

    guard = only(objects, "NetworkPolicy", "coordinatord")["spec"]
    assert guard["podSelector"]["matchLabels"] == labels
    assert guard["ingress"] == [
        {"from": [{"podSelector": {"matchLabels": node["metadata"]["labels"]}}], "ports": [{"port": port["name"]}]}
    ]
    assert (
        only(objects, "NetworkPolicy", "nodeclient")["spec"]["podSelector"]["matchLabels"]
        == (node["metadata"]["labels"])
    )
    scraped = only(objects, "NetworkPolicy", "coordinatord-prometheus")["spec"]
    assert scraped["podSelector"]["matchLabels"] == labels
    told = (KUBERNETES / "components" / "prometheus" / "kustomization.yaml").read_text()
    [(name, asked)] = re.findall(r"names: \[(\S+)\.coordinatord\.svc\], type: A, port: (\d+)", told)
    assert services[name]["clusterIP"] == "None", "it is scraped at each pod, of which one may stand by"
    assert asked == str(DEFAULT_PORT)


def test_what_is_mounted_exists() -> None:
    for directory in OVERLAYS:
        objects = built(directory)
        claims = {manifest["metadata"]["name"] for manifest in objects if manifest["kind"] == "PersistentVolumeClaim"}
        for template in templates(objects):
            volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
            assert volumes.keys() == {mount["name"] for mount in container(template)["volumeMounts"]}
            wanted = [volume.get("persistentVolumeClaim", {"claimName": None}) for volume in volumes.values()]
            assert {claim["claimName"] for claim in wanted} <= claims | {None}


def test_every_pod_mounts_the_token_that_people_are_told_to_make() -> None:
    lines = [*KUBERNETES.rglob("kustomization.yaml"), DEPLOY / "README.md"]
    told = [re.findall(r"create secret generic (\S+) --from-file=(\w+)=", file.read_text()) for file in lines]
    [(secret, file)] = {pair for found in told for pair in found}
    for directory in ("training", "kubeflow", *OVERLAYS):
        [template] = [template for template in templates(built(directory)) if container(template)["name"] == "node"]
        named = environment([], container(template), POD)["NODECLIENT_TOKEN_FILE"]
        [mount] = [mount for mount in container(template)["volumeMounts"] if f"{mount['mountPath']}/{file}" == named]
        [volume] = [volume for volume in template["spec"]["volumes"] if volume["name"] == mount["name"]]
        assert volume["secret"] == {"secretName": secret, "defaultMode": 0o440}, "for the group of the pod"


def test_exit_codes_decide_whether_a_pod_is_replaced() -> None:
    """The codes of workers are the verdict of the run: whatever is not listed ends the Job."""
    disruption, unharmed, verdict = _job("training")["spec"]["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in (disruption, unharmed, verdict)] == ["Ignore", "Ignore", "FailJob"]
    assert [rule["onExitCodes"]["operator"] for rule in (unharmed, verdict)] == ["In", "NotIn"]
    ignored, counted = (rule["onExitCodes"]["values"] for rule in (unharmed, verdict))
    assert ignored == [ExitCode.TEMPFAIL, ExitCode.TERMINATED], "the first rule that fits holds, so these end no Job"
    killed = 128 + signal.SIGKILL
    assert {*ignored, *counted} == WORTH_ANOTHER_TRY | LEFT | {killed}
    assert [ignored, counted] == [sorted(ignored), sorted(counted)], "Kubernetes wants them in order"
    assert codes_of_nodes() == WORTH_ANOTHER_TRY | LEFT | FOR_GOOD
    [named] = {rule["onExitCodes"]["containerName"] for rule in (unharmed, verdict)}
    assert named == container(_job("training")["spec"]["template"])["name"]


@pytest.mark.parametrize("directory", KUSTOMIZATIONS)
def test_pods_are_as_restricted_as_their_namespace_wants(directory: str) -> None:
    """They come from kubernetes.io/docs/concepts/security/pod-security-standards."""
    [namespace] = [manifest for manifest in built("coordinator") if manifest["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for template in templates(built(directory)):
        pod = template["spec"]
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "ephemeralContainers"}
        assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for box in pod["containers"] + pod.get("initContainers", []):
            assert box["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret"}
        assert pod["automountServiceAccountToken"] is False


def _status(url: str) -> int:
    trusting = ssl.create_default_context()  # as Kubernetes does
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=trusting) as answer:  # noqa: S310 - https
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_probes_are_content_while_nothing_can_be_recorded(tmp_path: Path) -> None:
    """Otherwise Kubernetes would restart a daemon with a full disk again and again, and take it from the nodes."""
    box = container(only(built("coordinator"), "Deployment")["spec"]["template"])
    disk = tmp_path / "disk"
    # Those check whether it listens.
    assert [box[probe]["tcpSocket"] for probe in ("startupProbe", "readinessProbe")] == [{"port": "http"}] * 2
    probe = box["livenessProbe"]["httpGet"]
    path = probe["path"]
    with (
        Coordinator(prefix=small_disk(disk, 512), state_dir=disk / "state", home=tmp_path / "config") as daemon,
        Cluster(daemon, "job") as cluster,
    ):
        assert daemon.url.startswith(f"{probe['scheme'].lower()}:")
        assert _status(f"{daemon.url}{path}") == 200
        fill(Path(f"/proc/{daemon.pid}/root{disk}/ballast"))
        cluster.join("a")
        wait_until("a complaint", lambda: _status(f"{daemon.url}/healthz") == 503)
        assert _status(f"{daemon.url}{path}") == 200


# The runtime for Kubeflow Trainer: its Job is the one that is tried without it.

SCHEMAS: Object = json.loads(Path(__file__).with_name("kubeflow_trainer_2.3.0.json").read_text())
"""An excerpt of the resource definitions of Kubeflow Trainer; it says what was left out."""

OF_TRAIN_JOB = POD | {
    "metadata.labels['jobset.sigs.k8s.io/jobset-name']": "mnist",
    "metadata.name": "mnist-node-0-1-x7k2p",
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


def test_the_schemas_of_kubeflow_know_every_field(runtime: Object, train_job: Object) -> None:
    check(runtime)
    check(train_job)
    kubernetes_validate.validate(job_of(runtime), OLDEST, strict=True)


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
    variables = environment([], box, OF_TRAIN_JOB) | {
        variable["name"]: variable["value"] for variable in trainer["env"]
    }
    host = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "mnist-node-0-1", "PATH": str(BIN)}
    program, *arguments = command_line(box)
    assert program == "nodeclient"
    assert variables.pop("NODECLIENT_NPROC_PER_NODE") == "gpu"
    node = parse(with_script_of_this_host(arguments), variables | host)
    assert isinstance(node, JoinConfig)
    assert [(coordinator.host, coordinator.port) for coordinator in node.coordinators] == [
        ("coordinatord", DEFAULT_PORT)
    ]
    assert (node.job, node.node, node.group_rank) == (train_job["metadata"]["name"], OF_TRAIN_JOB["metadata.name"], 1)
    assert node.spec.nodes_max == trainer["numNodes"]
