"""The manifests of examples/kubernetes, and what an API server, an operator and a cluster's policy
would say about them. `journeys/test_pod.py` runs the image as they say.
"""

from __future__ import annotations

import copy
from pathlib import Path

import kubernetes_validate
import pytest
from kubeflow_spark_api.models import SparkV1beta2SparkApplication

from connectors.options.job_definition import JobDefinition
from connectors.options.job_file import parse_job
from tests.kubernetes_files import FOLDER, Document, documents, of_kind, pods
from tests.pages import block, replaced

FILES = {one.stem: one.read_text("utf-8") for one in sorted(FOLDER.glob("*.yaml"))}
VERSION = "1.37"
#: Volumes that the level `restricted` allows, of those that a pipeline could want.
ALLOWED_VOLUMES = {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected"}
SECRETS = "/run/secrets/flights"


EVERY_FILE = pytest.mark.parametrize("file", FILES)
EVERY_JOB = pytest.mark.parametrize("file", sorted(FILES.keys() - {"rights"}))


def assert_accepted(document: Document) -> None:
    """Do what an API server does with its schemas; an unknown field is an error."""
    if document["kind"] == "SparkApplication":
        known = SparkV1beta2SparkApplication.from_dict(document)
        assert known is not None
        assert known.to_dict() == document
    else:
        kubernetes_validate.validate(document, VERSION, strict=True)


def assert_restricted(pod: Document) -> None:
    """Check the level `restricted` of the Pod Security Standards, and more: nothing is written to
    the image, and no user is left to the image.
    """
    spec = pod["spec"]
    user = spec["securityContext"]
    assert user["runAsNonRoot"] is True
    assert user["runAsUser"] == 1000
    assert user["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert {kind for one in spec["volumes"] for kind in set(one) - {"name"}} <= ALLOWED_VOLUMES
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert set(mounts) == {one["name"] for one in spec["volumes"]}
        assert mounts["tmp"] == "/tmp"


def job_of(file: str, secrets: Path) -> JobDefinition:
    for name in ("access_key_id", "secret_access_key"):
        (secrets / name).write_text("said to nobody")
    text = replaced(of_kind(FILES[file], "ConfigMap")["data"]["job.toml"], {SECRETS: str(secrets)})
    pod = {"POD_NAME": "flights-1", "POD_NAMESPACE": "default", "POD_IP": "10.0.0.1"}
    return parse_job(text, Path("/etc/flights/job.toml"), pod)


@EVERY_FILE
def test_an_api_server_takes_it(file):
    for document in documents(FILES[file]):
        assert_accepted(document)


@EVERY_JOB
def test_a_pod_is_restricted(file):
    for pod in pods(FILES[file]):
        named = {"apiVersion": "v1", "kind": "Pod", **pod}
        assert_accepted({**named, "metadata": {"name": "one", **pod.get("metadata", {})}})
        assert_restricted(pod)


@EVERY_JOB
def test_the_job_file_fits_to_its_pods(file, tmp_path):
    job = job_of(file, tmp_path)
    driver = next(pods(FILES[file]))["spec"]
    (container,) = driver["containers"]
    assert [one["containerPort"] for one in container["ports"]] == [job.option("metrics_port")]
    assert job.option("metrics_host") == "0.0.0.0"
    for probe, path in (("startup", "/livez"), ("liveness", "/livez"), ("readiness", "/readyz")):
        assert container[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "metrics"}
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounts["secrets"] == SECRETS
    assert mounts["job"] == "/etc/flights"
    assert job.location.folder is None, "a pod on another node would not have it"


def test_executors_have_a_slot_for_each_task(tmp_path):
    own = job_of("executors", tmp_path)
    slots = int(own.spark["spark.executor.instances"]) * int(own.spark["spark.executor.cores"])
    assert own.option("parallelism") == slots
    operator = of_kind(FILES["spark-application"], "SparkApplication")["spec"]["executor"]
    of_operator = job_of("spark-application", tmp_path)
    assert of_operator.option("parallelism") == operator["instances"] * operator["cores"]


def test_the_page_shows_lines_of_the_file():
    job = of_kind(FILES["executors"], "ConfigMap")["data"]["job.toml"].splitlines()
    shown = block("docs/kubernetes.md", "parallelism = 4").splitlines()
    assert [line for line in shown if line and line not in job] == []


def test_the_budget_is_for_the_executors(tmp_path):
    budget = of_kind(FILES["executors"], "PodDisruptionBudget")["spec"]
    job = job_of("executors", tmp_path)
    (label,) = budget["selector"]["matchLabels"].items()
    assert job.spark[f"spark.kubernetes.executor.label.{label[0]}"] == label[1]
    assert budget["minAvailable"] == int(job.spark["spark.executor.instances"]) - 1
    assert budget["minAvailable"] > 0


@pytest.mark.parametrize("file", ["executors", "spark-application"])
def test_spark_says_the_service_account(file):
    """The rights of rights.yaml are those of the driver."""
    account = of_kind(FILES["rights"], "ServiceAccount")["metadata"]["name"]
    binding = of_kind(FILES["rights"], "RoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    if file == "executors":
        driver = of_kind(FILES["executors"], "Deployment")["spec"]["template"]["spec"]
        assert driver["serviceAccountName"] == account
    else:
        spec = of_kind(FILES["spark-application"], "SparkApplication")["spec"]
        assert spec["driver"]["serviceAccount"] == account


# --- the checks themselves ------------------------------------------------------------------------


def test_an_unknown_field_is_found():
    deployment = copy.deepcopy(of_kind(FILES["pipeline"], "Deployment"))
    deployment["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnly"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnly"):
        assert_accepted(deployment)
    application = copy.deepcopy(of_kind(FILES["spark-application"], "SparkApplication"))
    application["spec"]["driver"]["template"]["spec"]["gracePeriod"] = 60
    with pytest.raises(AssertionError):
        assert_accepted(application)


@pytest.mark.parametrize(
    "weaken",
    [
        lambda spec: spec["securityContext"].pop("runAsNonRoot"),
        lambda spec: spec["securityContext"].update(runAsUser=0),
        lambda spec: spec.update(hostNetwork=True),
        lambda spec: spec["volumes"].append({"name": "disk", "hostPath": {"path": "/"}}),
        lambda spec: spec["containers"][0]["securityContext"].update(privileged=True),
        lambda spec: spec["containers"][0]["securityContext"].pop("readOnlyRootFilesystem"),
        lambda spec: spec["containers"].append({"name": "sidecar", "securityContext": {}}),
    ],
)
def test_a_pod_with_more_rights_is_found(weaken):
    pod = copy.deepcopy(next(pods(FILES["pipeline"])))
    assert_restricted(pod)
    weaken(pod["spec"])
    with pytest.raises((AssertionError, KeyError)):
        assert_restricted(pod)
