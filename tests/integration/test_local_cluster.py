"""The embedded cluster: it serves, survives the loss of a broker, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer

from connectors.cluster import LocalCluster
from tests.integration.brokers import Broker
from tests.shared_broker import assert_no_open_transaction
from tests.tiers import long, sampled
from tests.waiting import until
from transactions.clock import Deadline
from transactions.errors import BrokerUnavailableError, ConfigurationError

OWNER = """
import json, os, signal, sys
from connectors.cluster import LocalCluster
# Started in the background of a script, it would inherit that nobody presses ctrl-C there.
signal.signal(signal.SIGINT, signal.default_int_handler)
cluster = LocalCluster().start()
child = os.fork()  # holds every descriptor of the owner, as a worker of multiprocessing does
if child == 0:
    signal.pause()
pids = [cluster.keeper_pid, cluster.pid(0)]
print(json.dumps({"pids": pids, "folder": str(cluster.directory), "child": child}), flush=True)
sys.stdin.readline()
raise RuntimeError("the owner fails")
"""


def produce(bootstrap: str, topic: str, values: range) -> None:
    refused: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    for value in values:
        producer.produce(
            topic, str(value).encode(), on_delivery=lambda e, _m: refused.append(e) if e else None
        )
    assert producer.flush(30) == 0
    assert refused == []


def consume(bootstrap: str, topic: str, count: int) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    deadline, values = Deadline(30.0), []
    try:
        while len(values) < count and not deadline.expired():
            for message in consumer.consume(500, 0.2):
                assert message.error() is None
                values.append(int(message.value()))
    finally:
        consumer.close()
    return sorted(values)


def wait_until_gone(pids: list[int]) -> None:
    until(
        lambda: not any(map(psutil.pid_exists, pids)),
        said=lambda: f"still running: {[*filter(psutil.pid_exists, pids)]}",
    )


def test_shared_broker_serves_a_plain_producer_and_consumer(
    bootstrap: str, topic: Callable[..., str]
) -> None:
    name = topic(partitions=3)
    produce(bootstrap, name, range(100))
    assert consume(bootstrap, name, 100) == list(range(100))


def test_the_leak_check_sees_an_open_transaction(
    kafka_cluster: Broker, topic: Callable[..., str], application_id: str
) -> None:
    producer = Producer(
        {
            "bootstrap.servers": kafka_cluster.bootstrap_servers,
            "transactional.id": f"{application_id}.log.1.p.0",
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic(), b"open")
    producer.flush(10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deadline, "expired", lambda _self: True)
        with pytest.raises(AssertionError, match=r"left open: .*ONGOING"):
            assert_no_open_transaction(kafka_cluster.bootstrap_servers, application_id)
    producer.abort_transaction(30)


@long
def test_a_data_folder_is_taken_up_again_with_its_port(tmp_path: Path) -> None:
    with LocalCluster(directory=tmp_path) as cluster:
        before = cluster.bootstrap_servers
        cluster.create_topic("kept")
        produce(before, "kept", range(10))
    assert (tmp_path / "broker-1" / "data").is_dir()
    with LocalCluster(directory=tmp_path) as cluster:
        assert cluster.bootstrap_servers == before
        assert consume(before, "kept", 10) == list(range(10))
        with pytest.raises(ConfigurationError, match="is taken"):
            LocalCluster(port=cluster.addresses[0].port).start()


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as cluster:
        yield cluster


@pytest.mark.long
def test_three_brokers_serve_while_one_is_killed_and_after_its_return(
    three_brokers: LocalCluster,
) -> None:
    cluster = three_brokers
    cluster.create_topic("t", partitions=3)
    produce(cluster.bootstrap_servers, "t", range(100))
    first = cluster.addresses[0].bootstrap
    cluster.kill_broker(0)
    assert cluster.pid(0) is None
    produce(cluster.bootstrap_servers, "t", range(100, 200))
    cluster.start_broker(0)
    assert cluster.addresses[0].bootstrap == first
    produce(first, "t", range(200, 300))
    assert consume(cluster.bootstrap_servers, "t", 300) == list(range(300))


@pytest.mark.long
def test_a_paused_broker_answers_nothing_until_resumed(three_brokers: LocalCluster) -> None:
    cluster = three_brokers
    pid = cluster.pid(2)
    assert pid is not None
    cluster.pause_broker(2)
    assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    cluster.resume_broker(2)
    cluster.stop_broker(2)
    cluster.start_broker(2)
    assert cluster.pid(2) not in {None, pid}


@pytest.mark.parametrize("end", sampled(["SIGKILL", "exception", "ctrl-C"], "SIGKILL"))
def test_nothing_outlives_the_owner(end: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        told = json.loads(owner.stdout.readline())
        try:
            assert all(psutil.pid_exists(pid) for pid in told["pids"])
            if end == "exception":
                owner.stdin.write("\n")
                owner.stdin.flush()
            else:
                owner.send_signal(signal.SIGKILL if end == "SIGKILL" else signal.SIGINT)
            owner.wait(90)  # a broker stops in order, beside what else the machine does
            wait_until_gone(told["pids"])
            until(lambda: not Path(told["folder"]).exists())
        finally:
            os.kill(told["child"], signal.SIGKILL)


@long
def test_a_killed_keeper_takes_its_brokers_along() -> None:
    if sys.platform != "linux":
        return  # elsewhere the kernel offers nothing of the kind
    cluster = LocalCluster().start()
    pids = [cluster.keeper_pid, cluster.pid(0) or 0]
    os.kill(cluster.keeper_pid, signal.SIGKILL)
    cluster.stop()
    wait_until_gone(pids)
    assert not cluster.directory.exists()


def test_a_broker_that_cannot_start_says_so_with_its_log() -> None:
    users = {"listener.name.plaintext.plain.sasl.jaas.config": "hunter2"}
    cluster = LocalCluster(properties={"log.retention.hours": "many", **users})
    refused = r"(?s)did not come up.*log\.retention\.hours"
    with pytest.raises(BrokerUnavailableError, match=refused) as caught:
        cluster.start()
    assert "hunter2" not in str(caught.value)
    assert not cluster.directory.exists()


def test_a_cluster_of_two_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="one broker or three"):
        LocalCluster(brokers=2)
