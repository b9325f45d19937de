"""A real Apache Kafka of one or three brokers in child processes: no Docker, no installation.

    with LocalCluster(brokers=3) as cluster:
        cluster.create_topic("flights", partitions=4)
        ... cluster.bootstrap_servers ...
        cluster.kill_broker(0)

Every call numbers brokers from 0; node ids are one more. A broker that is stopped or killed and
started again keeps its port and its data.
"""

from __future__ import annotations

import base64
import contextlib
import shutil
import signal
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.clients.topic_leaders import has_leaders
from connectors.cluster import broker_settings
from connectors.cluster.broker_jars import ensure_broker_jars
from connectors.cluster.broker_jvm import BrokerJvm, log_tail
from connectors.cluster.broker_settings import BrokerAddress
from connectors.cluster.keeper_client import KeeperClient
from connectors.machine.java import ensure_java_home
from connectors.options.client_options import without_secret
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import BrokerUnavailableError, ConfigurationError, SparkOnceError

START_SECONDS = 60.0
STOP_SECONDS = 15.0
_POLL_SECONDS = 0.05


class LocalCluster:
    """One or three real brokers on free ports of 127.0.0.1.

    Args:
        brokers: 1, or 3 (every topic of the cluster then has three replicas, two in sync).
        port: the client port of the first broker; a free one when None.
        directory: the data folder. It is kept when the cluster stops, and used again with its
            ports if they are still free. None: a temporary folder, removed at the end.
        properties: broker settings that override ours.
        jvm_options: further JVM options of the brokers, such as ``-Xmx1g``; they win over ours,
            which aim at a quick start and not at speed.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        port: int | None = None,
        directory: str | Path | None = None,
        properties: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if brokers not in {1, 3}:
            raise ConfigurationError(
                "a local cluster has one broker or three",
                cause="two brokers have no quorum after the loss of one",
                option=f"brokers={brokers}",
            )
        self._brokers = brokers
        self._port = port
        self._given = None if directory is None else Path(directory).absolute()
        self._properties = dict(properties or {})
        self._jvm_options = tuple(jvm_options)
        self._clock = clock
        self._directory: Path | None = None
        self._addresses: tuple[BrokerAddress, ...] = ()
        self._jvm: BrokerJvm | None = None
        self._keeper: KeeperClient | None = None
        self._pids: dict[int, int] = {}

    # -- what it is ---------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """Return host:port of every broker, separated by commas."""
        return ",".join(address.bootstrap for address in self._addresses)

    @property
    def addresses(self) -> tuple[BrokerAddress, ...]:
        """Return where each broker listens, whether it runs now or not."""
        return self._addresses

    @property
    def directory(self) -> Path:
        """Return the folder with data and logs of the brokers."""
        assert self._directory is not None, "the cluster was not started"
        return self._directory

    @property
    def keeper_pid(self) -> int:
        """Return the process that is the parent of the brokers."""
        return self._running_keeper().pid

    def pid(self, broker: int) -> int | None:
        """Return the process id of a broker, None when it does not run."""
        pid = self._pids.get(broker)
        if pid is None or self._running_keeper().exit_code(pid) is not None:
            return None
        return pid

    # -- the whole cluster --------------------------------------------------------------------

    def start(self) -> Self:
        """Start every broker; return when each of them has answered for the whole cluster.

        Raises:
            ConfigurationError: the port is taken, or the folder holds another kind of cluster.
            BrokerUnavailableError: a broker did not come up; the end of its log is in the text.
        """
        if self._keeper is not None:
            return self
        java_home = ensure_java_home()
        jars = ensure_broker_jars(java_home)
        self._prepare_folder()
        self._jvm = BrokerJvm(java_home, jars, self._jvm_options)
        self._keeper = KeeperClient(self._directory if self._given is None else None)
        try:
            deadline = Deadline(START_SECONDS, self._clock)
            self._format(deadline)
            for broker in range(self._brokers):
                self._launch(broker)
            for broker in range(self._brokers):
                self._wait_until_ready(broker, deadline, together=True)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop every broker; remove a temporary folder. Safe to call twice."""
        keeper = self._keeper
        if keeper is None:
            return
        try:
            # Temporary data needs no clean end, unless the JVM learns from it.
            gentle = self._given is not None or self._learning()
            if gentle and len(self._pids) == self._brokers:
                for pid in self._pids.values():
                    keeper.signal(pid, signal.SIGCONT)
                    keeper.signal(pid, signal.SIGTERM)
                deadline = Deadline(STOP_SECONDS, self._clock)
                for pid in self._pids.values():
                    self._wait_for_exit(pid, deadline)
                self._learnt()
        except SparkOnceError:
            pass  # the keeper is gone, and all brokers with it: that is the wanted end
        finally:
            self._keeper = None
            self._pids.clear()
            keeper.close()
            if self._given is None and self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)

    def detach(self) -> None:
        """Let the brokers run on after this process; SIGTERM to `keeper_pid` ends them."""
        keeper = self._running_keeper()
        keeper.release()
        self._keeper = None
        self._pids.clear()
        keeper.close(wait=False)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- one broker ---------------------------------------------------------------------------

    def start_broker(self, broker: int) -> None:
        """Start a stopped or killed broker again, with its data and port; wait until it serves."""
        if self.pid(broker) is None:
            self._launch(broker)
            self._wait_until_ready(broker, Deadline(START_SECONDS, self._clock), together=False)

    def stop_broker(self, broker: int) -> None:
        """Stop a broker in order: it first hands its partitions over, if another can lead them."""
        self._end(broker, signal.SIGTERM)

    def kill_broker(self, broker: int) -> None:
        """Kill a broker with SIGKILL: data that it had not replicated or written is lost."""
        self._end(broker, signal.SIGKILL)

    def pause_broker(self, broker: int) -> None:
        """Freeze a broker (SIGSTOP) and wait until it is frozen: it keeps its connections and
        answers nothing. The signal alone is only a request; a busy machine carries it out later.
        """
        pid = self._pids[broker]
        self._running_keeper().signal(pid, signal.SIGSTOP)
        deadline = Deadline(STOP_SECONDS, self._clock)
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED and not deadline.expired():
            deadline.pause(0.005)

    def resume_broker(self, broker: int) -> None:
        """Let a frozen broker continue (SIGCONT)."""
        self._running_keeper().signal(self._pids[broker], signal.SIGCONT)

    def create_topic(
        self, name: str, partitions: int = 1, *, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic; return when every running broker knows a leader of each partition."""
        deadline = Deadline(START_SECONDS, self._clock)
        admin = self._admin(self.bootstrap_servers)
        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=self._brokers,
            config=dict(config or {}),
        )
        try:
            admin.create_topics([topic], request_timeout=deadline.remaining())[name].result()
        except KafkaException as error:
            raise ConfigurationError(
                f"topic {name} could not be created",
                where=self.bootstrap_servers,
                cause=str(error.args[0]),
                option=f"partitions={partitions}",
            ) from error
        for broker, address in enumerate(self._addresses):
            while self.pid(broker) is not None and not has_leaders(
                self._admin(address.bootstrap), name, partitions
            ):
                self._not_expired(deadline, broker)

    # -- steps --------------------------------------------------------------------------------

    def _prepare_folder(self) -> None:
        if self._given is None:
            self._directory = Path(tempfile.mkdtemp(prefix="sparkonce-kafka-"))
        else:
            self._given.mkdir(parents=True, exist_ok=True)
            self._directory = self._given
        before = broker_settings.read_addresses(self.directory)
        if before and len(before) != self._brokers:
            raise ConfigurationError(
                f"this folder holds the data of a cluster of {len(before)} broker(s)",
                where=str(self.directory),
                cause="the number of brokers is part of the data",
                option=f"brokers={self._brokers}",
            )
        if any(broker_settings.is_locked(self._folder(n)) for n in range(len(before))):
            raise ConfigurationError(
                "a broker runs on this data folder already",
                where=str(self.directory),
                cause="two brokers on one folder would destroy its data",
                option=f"directory={self.directory}",
            )
        if not self._addresses:
            self._addresses = self._choose_addresses(before)
        for address in self._addresses:
            for port in (address.port, address.controller_port):
                if not broker_settings.port_is_free(port):
                    raise ConfigurationError(
                        f"port {port} of 127.0.0.1 is taken",
                        where=f"broker {address.node - 1}",
                        cause="another broker, or another program, listens on it",
                        option=f"port={self._port or '(chosen)'}",
                    )
        self._write_settings()

    def _choose_addresses(self, before: tuple[BrokerAddress, ...]) -> tuple[BrokerAddress, ...]:
        same_port = before and self._port in {None, before[0].port}
        everything_free = all(
            broker_settings.port_is_free(port)
            for address in before
            for port in (address.port, address.controller_port)
        )
        if same_port and everything_free:
            return before
        return broker_settings.choose_addresses(self._brokers, self._port)

    def _write_settings(self) -> None:
        for broker, address in enumerate(self._addresses):
            folder = self._folder(broker)
            folder.mkdir(exist_ok=True)
            settings = broker_settings.broker_settings(
                address, self._addresses, folder / "data", self._properties
            )
            broker_settings.write_settings(folder / "server.properties", settings)

    def _format(self, deadline: Deadline) -> None:
        """Format the storage of brokers without one: all at once, with one cluster id."""
        assert self._jvm is not None
        keeper = self._running_keeper()
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # an id that starts with a dash would look like an option
        cluster_id = cluster_id.replace("-", "a")
        formatting = {
            broker: keeper.start(
                self._jvm.format_command(self._folder(broker) / "server.properties", cluster_id),
                self._log(broker),
            )
            for broker in range(self._brokers)
            if not (self._folder(broker) / "data" / "meta.properties").exists()
        }
        for broker, pid in formatting.items():
            while (code := keeper.exit_code(pid)) is None:
                self._not_expired(deadline, broker)
            if code != 0:
                raise self._not_up(broker, f"formatting its storage ended with exit code {code}")

    def _launch(self, broker: int) -> None:
        assert self._jvm is not None
        command = self._jvm.broker_command(
            self._folder(broker) / "server.properties", learn=broker == 0
        )
        self._pids[broker] = self._running_keeper().start(command, self._log(broker))

    def _wait_until_ready(self, broker: int, deadline: Deadline, *, together: bool) -> None:
        """Wait for the broker's own answer that names it, or the whole cluster."""
        address = self._addresses[broker]
        everyone = {a.node for a in self._addresses} if together else {address.node}
        while broker_settings.port_is_free(address.port):
            self._not_ended(broker)
            self._not_expired(deadline, broker)
        admin = self._admin(address.bootstrap)
        while True:
            with contextlib.suppress(KafkaException):
                if everyone <= set(admin.list_topics(timeout=2.0).brokers):
                    return
            self._not_ended(broker)
            self._not_expired(deadline, broker)

    def _end(self, broker: int, how: signal.Signals) -> None:
        pid = self.pid(broker)
        if pid is None:
            return
        keeper = self._running_keeper()
        if how is signal.SIGTERM:
            keeper.signal(pid, signal.SIGCONT)
        keeper.signal(pid, how)
        self._wait_for_exit(pid, Deadline(STOP_SECONDS, self._clock))
        del self._pids[broker]

    def _wait_for_exit(self, pid: int, deadline: Deadline) -> None:
        keeper = self._running_keeper()
        while keeper.exit_code(pid) is None:
            if deadline.expired():
                keeper.signal(pid, signal.SIGKILL)
            self._clock.sleep(_POLL_SECONDS)

    def _learning(self) -> bool:
        return self._jvm is not None and self._jvm.learning

    def _learnt(self) -> None:
        if self._jvm is not None:
            self._jvm.keep_what_was_learnt()

    def _running_keeper(self) -> KeeperClient:
        if self._keeper is None:
            raise ConfigurationError(
                "the local cluster is not running",
                where=str(self._directory or "(never started)"),
                cause="start() was not called, or stop() was called",
                option=f"brokers={self._brokers}",
            )
        return self._keeper

    def _not_ended(self, broker: int) -> None:
        code = self._running_keeper().exit_code(self._pids[broker])
        if code is not None:
            raise self._not_up(broker, f"its process ended with exit code {code}")

    def _not_expired(self, deadline: Deadline, broker: int) -> None:
        if deadline.expired():
            raise self._not_up(broker, f"no answer within {deadline.seconds:.0f} s")
        deadline.pause(_POLL_SECONDS)

    def _not_up(self, broker: int, why: str) -> BrokerUnavailableError:
        shown = {name: without_secret(name, value) for name, value in self._properties.items()}
        return BrokerUnavailableError(
            f"the embedded Kafka broker {broker} did not come up: {why}",
            where=f"{self._addresses[broker].bootstrap}, log {self._log(broker)}",
            cause="the end of its log:\n" + log_tail(self._log(broker)),
            option=f"properties={shown}",
        )

    def _folder(self, broker: int) -> Path:
        return self.directory / f"broker-{broker + 1}"

    def _log(self, broker: int) -> Path:
        return self._folder(broker) / "broker.log"

    @staticmethod
    def _admin(bootstrap: str) -> AdminClient:
        # log_level 0: we wait for a broker that is not there yet, so its absence is not an error
        return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
