"""A company runs its pipeline on Kubernetes, by the manifests of the page.

Docker stands in for a node: it runs the image of `make docker-image`, with a module of theirs in
it, as a manifest says: user, rights, read-only file system, memory, files, arguments and grace
period. The probes are asked as a kubelet asks them. A pod that is replaced has nothing but its
manifest.
"""

from __future__ import annotations

import contextlib
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from connectors.cluster.broker_settings import choose_addresses
from tests.journeys.conftest import CLEAN, PATIENCE_S, Process, Stranger, started
from tests.kubernetes_files import FOLDER, Document, of_kind, pods
from tests.pages import block, replaced
from tests.tiers import long
from tests.unit.s3_server import S3Server
from transactions.clock import Deadline

pytestmark = [long, pytest.mark.in_container, pytest.mark.timeout(900)]

#: What Spark on Kubernetes gives the container of a driver in cluster mode; here without executors.
DRIVER = ["driver", "--properties-file", "/opt/spark/conf/spark.properties"]
PROPERTIES = "spark.master=local[2]\nspark.kubernetes.submitInDriver=true\n"


@dataclass
class Pod:
    """What a manifest says, with this broker, store and topics in it."""

    name: str
    image: str
    spec: Document
    args: list[str]
    folders: dict[str, Path]
    starts: int = 0

    @contextlib.contextmanager
    def runs(self, folder: Path) -> Iterator[Process]:
        """A node runs it; all of it is gone when the block ends."""
        self.starts += 1
        command = ["docker", "run", "--name", self.container]
        command += [*self._rights(), *self._volumes()]
        # Its address: probes and the broker are on this machine.
        command += ["--network", "host", "--env", "SPARK_DRIVER_BIND_ADDRESS=127.0.0.1"]
        command += [self.image, *self.args]
        with started(*command, folder=folder, environment={}, with_stdout=True) as run:
            try:
                yield run
            finally:
                self.kill()

    @property
    def container(self) -> str:
        """The name of the container that runs now."""
        return f"{self.name}-{self.starts}"

    @property
    def _container(self) -> Document:
        (only,) = self.spec["containers"]
        return only

    def _rights(self) -> Iterator[str]:
        user, rights = self.spec["securityContext"], self._container["securityContext"]
        yield from ("--user", f"{user['runAsUser']}:{user['runAsGroup']}")
        for capability in rights["capabilities"]["drop"]:
            yield from ("--cap-drop", capability)
        if not rights["allowPrivilegeEscalation"]:
            yield from ("--security-opt", "no-new-privileges")
        if rights["readOnlyRootFilesystem"]:
            yield "--read-only"
        if limits := self._container.get("resources", {}).get("limits"):
            yield from ("--memory", limits["memory"].removesuffix("i"))

    def _volumes(self) -> Iterator[str]:
        there = {one["name"]: one for one in self.spec["volumes"]}
        for mount in self._container["volumeMounts"]:
            if "emptyDir" in there[mount["name"]]:
                yield from ("--tmpfs", f"{mount['mountPath']}:rw,exec,mode=1777")
            else:
                yield from ("--volume", f"{self.folders[mount['name']]}:{mount['mountPath']}:ro")
        if conf := self.folders.get("conf"):  # Spark adds it to each pod
            yield from ("--volume", f"{conf}:/opt/spark/conf:ro")

    def probe(self, name: str, run: Process, patience_s: float = PATIENCE_S) -> None:
        """Ask, as the manifest says, until it is answered."""
        told = self._container[f"{name}Probe"]
        (port,) = (one["containerPort"] for one in self._container["ports"])
        url = f"http://127.0.0.1:{port}{told['httpGet']['path']}"
        deadline = Deadline(patience_s)
        while not _answers(url, told.get("timeoutSeconds", 1)):
            assert not deadline.expired(), f"{name}\n{run.text}"
            assert run.process.poll() is None, run.text
            deadline.pause(told["periodSeconds"])

    def stop(self, run: Process) -> int:
        """Do what a node does with a pod that is deleted: SIGTERM, and the time of the manifest."""
        grace_s = self.spec["terminationGracePeriodSeconds"]
        subprocess.run(
            ["docker", "stop", "--time", str(grace_s), self.container],
            check=True,
            capture_output=True,
        )
        return run.ends()

    def kill(self) -> None:
        """Its node is lost."""
        subprocess.run(
            ["docker", "rm", "--force", self.container], check=False, capture_output=True
        )


def _answers(url: str, timeout_s: float) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout_s):
            return True
    except OSError:  # nobody listens; or it answers that it is not ready
        return False


@pytest.fixture
def image(stranger: Stranger) -> Iterator[str]:
    """The image of the page, with a module of the stranger's own."""
    context = _folder(
        stranger.folder / "image",
        {"Dockerfile": block("docs/kubernetes.md", "FROM sparkonce"), "my_module.py": CLEAN},
    )
    name = f"sparkonce-test/{stranger.app}"
    built = subprocess.run(
        ["docker", "build", "--tag", name, str(context)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, f"make docker-image\n{built.stderr}"
    yield name
    subprocess.run(["docker", "image", "rm", name], check=True, capture_output=True)


def pod_of(file: str, image: str, stranger: Stranger, store: S3Server) -> Pod:
    """Return the pod of the driver."""
    port = choose_addresses(1, None)[0].port
    text = replaced((FOLDER / file).read_text("utf-8"), {"9108": str(port)})
    secrets = {"access_key_id": "tester", "secret_access_key": "secret"}
    job = replaced(
        of_kind(text, "ConfigMap")["data"]["job.toml"],
        {
            'id = "flights"': f'id = "{stranger.app}"',
            "s3://state/flights": f"s3://{store.bucket}/{stranger.app}",
            'store.region = "eu-west-1"': f'store.endpoint = "{store.endpoint}"',
            "kafka:9092": stranger.bootstrap,
            'subscribe = "flights"': f'subscribe = "{stranger.topic}"',
            'topic = "flights-clean"': f'topic = "{stranger.output}"',
        },
    ).replace("parallelism = 4", "parallelism = 2")
    job += '[transform]\narrow = "my_module:clean"\n'
    (template, *_) = pods(text)
    args: list[str] = template["spec"]["containers"][0].get("args", [])
    if file == "spark-application.yaml":
        application = of_kind(text, "SparkApplication")["spec"]
        args = [*DRIVER, application["mainApplicationFile"], *application["arguments"]]
    folders = {
        "job": _folder(stranger.folder / "job", {"job.toml": job}),
        "secrets": _folder(stranger.folder / "secrets", secrets),
    }
    if args[0] == "driver":
        folders["conf"] = _folder(stranger.folder / "conf", {"spark.properties": PROPERTIES})
    return Pod(stranger.app, image, template["spec"], args, folders)


def _folder(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("file", "stopped"), [("pipeline.yaml", 0), ("spark-application.yaml", 143)]
)
def test_a_pod_is_stopped_killed_and_goes_on(
    stranger: Stranger, image: str, file: str, stopped: int
):
    with S3Server() as store, stranger.busy_topic(), stranger.follows_output() as reader:
        pod = pod_of(file, image, stranger, store)
        with pod.runs(stranger.folder) as run:
            pod.probe("startup", run)
            pod.probe("readiness", run)
            stranger.more_comes_out(reader, run)
            pod.probe("liveness", run)
            assert pod.stop(run) == stopped, run.text
            assert f"{stranger.app}: stopped; " in run.text
        with pod.runs(stranger.folder) as run:
            stranger.more_comes_out(reader, run)
            pod.kill()
        with pod.runs(stranger.folder) as run:
            stranger.comes_to(stranger.input_ends(), reader, run)
            assert pod.stop(run) == stopped, run.text
    stranger.assert_each_record_came_once()
