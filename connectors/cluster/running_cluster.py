"""The cluster that `sparkonce kafka up` left running: its description, and how to end it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.clients.topic_leaders import has_leaders
from connectors.cluster.local_cluster import LocalCluster
from connectors.machine.user_folders import state_folder
from transactions.clock import SYSTEM_CLOCK, Deadline
from transactions.errors import BrokerUnavailableError, ConfigurationError

# more than the keeper gives its brokers for an orderly stop
_DOWN_SECONDS = 30.0
_TOPIC_SECONDS = 30.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessMark:
    """A process id with its start time: another process may have the same id by now."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> ProcessMark:
        """Mark a process that runs now."""
        return cls(pid=pid, started=psutil.Process(pid).create_time())

    def runs(self) -> bool:
        """Return whether this very process still runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < 1.0
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningBroker:
    """One broker, as it was at its start."""

    broker: int
    port: int
    process: ProcessMark
    folder: str

    def state(self) -> str:
        """Return the broker's own answer: serving, not answering, or ended."""
        if not self.process.runs():
            return "ended"
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.port}", "log_level": 0})
        try:
            admin.list_topics(timeout=3.0)
        except KafkaException:
            return "not answering"
        return "serving"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningCluster:
    """The content of the state file."""

    keeper: ProcessMark
    bootstrap_servers: str
    brokers: tuple[RunningBroker, ...]

    @classmethod
    def of(cls, cluster: LocalCluster) -> RunningCluster:
        """Describe a cluster that was just started."""
        brokers = []
        for broker, address in enumerate(cluster.addresses):
            pid = cluster.pid(broker)
            assert pid is not None, "a cluster that start() returned runs"
            brokers.append(
                RunningBroker(
                    broker=broker,
                    port=address.port,
                    process=ProcessMark.of(pid),
                    folder=str(cluster.directory / f"broker-{address.node}"),
                )
            )
        return cls(
            keeper=ProcessMark.of(cluster.keeper_pid),
            bootstrap_servers=cluster.bootstrap_servers,
            brokers=tuple(brokers),
        )

    def runs(self) -> bool:
        """Return whether any process of the cluster still runs."""
        return self.keeper.runs() or any(b.process.runs() for b in self.brokers)

    def end(self) -> None:
        """Stop the brokers in order; kill those that do not stop in time."""
        deadline = Deadline(_DOWN_SECONDS, SYSTEM_CLOCK)
        if self.keeper.runs():
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(self.keeper.pid).terminate()
        while self.runs() and not deadline.expired():
            # without a keeper nobody stops a broker that the kernel has not killed
            if not self.keeper.runs():
                break
            deadline.pause(_POLL_SECONDS)
        for mark in (self.keeper, *(broker.process for broker in self.brokers)):
            if mark.runs():
                with contextlib.suppress(psutil.NoSuchProcess):
                    psutil.Process(mark.pid).kill()


def make_topic(bootstrap_servers: str, name: str, partitions: int) -> bool:
    """Create a topic, with leaders, unless the name exists; return whether it was created.

    Raises:
        ConfigurationError: the brokers refuse it, or do not answer.
        BrokerUnavailableError: it was created, but got no leaders in time.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    deadline = Deadline(_TOPIC_SECONDS, SYSTEM_CLOCK)
    try:
        new = NewTopic(name, num_partitions=partitions)
        admin.create_topics([new], request_timeout=deadline.remaining())[name].result()
        while not has_leaders(admin, name, partitions):
            if deadline.expired():
                raise BrokerUnavailableError(
                    "A new topic has no leaders.",
                    where=f"{name}, on {bootstrap_servers}",
                    cause="a broker is overloaded or down",
                    option=f"--topic={name}:{partitions}",
                )
            deadline.pause(_POLL_SECONDS)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise ConfigurationError(
            f"The topic {name!r} could not be made.",
            where=bootstrap_servers,
            cause=str(error.args[0]),
            option=f"--topic={name}:{partitions}",
        ) from error
    return True


def state_file() -> Path:
    """Return the file that describes the running cluster."""
    return state_folder() / "kafka.json"


@contextlib.contextmanager
def locked_state() -> Iterator[None]:
    """Let only one `up` or `down` of this user run at a time."""
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_state() -> RunningCluster | None:
    """Return the described cluster, if any process of it still runs."""
    try:
        stored = json.loads(state_file().read_text("utf-8"))
        cluster = RunningCluster(
            keeper=ProcessMark(**stored["keeper"]),
            bootstrap_servers=stored["bootstrap_servers"],
            brokers=tuple(
                RunningBroker(**{**broker, "process": ProcessMark(**broker["process"])})
                for broker in stored["brokers"]
            ),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return cluster if cluster.runs() else None


def write_state(cluster: RunningCluster) -> None:
    """Write the description of the cluster in one step."""
    path = state_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".kafka-", dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        json.dump(asdict(cluster), stream, indent=2)
    Path(name).replace(path)


def forget_state() -> None:
    """Remove the description."""
    state_file().unlink(missing_ok=True)
