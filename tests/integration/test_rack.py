"""A task reads from the broker of its own rack, and from the leader when that broker is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.auditor.reader import Follower
from tests.chaos.proxied_cluster import ProxiedCluster
from tests.integration.job_process import PATIENCE_S, running
from tests.pages import block
from tests.tiers import long
from transactions.clock import Deadline

JOB = """
[app]
id = "{app}"
checkpoint = "state"
mode = "{mode}"
master = "local[1]"
{option}
kafka.bootstrap.servers = "{brokers}"
subscribe = "{source}"
startingOffsets = "earliest"
[[sink]]
kafka.bootstrap.servers = "{sink}"
topic = "{output}"
"""
EACH = 100
PADDING = bytes(5_000)  # nothing else that a broker sends in these seconds is half as long


@pytest.fixture(scope="module")
def three() -> Iterator[ProxiedCluster]:
    with ProxiedCluster(brokers=3) as cluster:
        yield cluster


class Racks:
    """One partition, its leader, and a follower; the rack of each broker is its own."""

    def __init__(self, cluster: ProxiedCluster, topic: str) -> None:
        cluster.create_topic(topic)
        self._cluster, self.topic = cluster, topic
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        leader = admin.list_topics(topic).topics[topic].partitions[0].leader
        nodes = {address.node: number for number, address in enumerate(cluster.addresses)}
        self.leader = nodes[leader]
        self.follower = next(number for node, number in nodes.items() if node != leader)
        self.rack = f"rack-{cluster.addresses[self.follower].node}"
        self.written = 0
        self._before = cluster.proxy.answered.copy()

    def write(self) -> list[bytes]:
        """Write some more records, and return all that were written."""
        producer = Producer({"bootstrap.servers": self._cluster.bootstrap_servers})
        for number in range(self.written, self.written + EACH):
            producer.produce(self.topic, b"%d" % number, key=PADDING)
        assert producer.flush(30) == 0
        self.written += EACH
        return [b"%d" % number for number in range(self.written)]

    def sent_by(self, broker: int) -> int:
        """Return how many rounds of records a broker has sent to the pipeline, by their bytes."""
        port = int(self._cluster.proxied_servers.split(",")[broker].rpartition(":")[2])
        sent = self._cluster.proxy.answered[port] - self._before[port]
        return round(sent / (EACH * len(PADDING)))


@long
@pytest.mark.parametrize("mode", ["micro-batch", "continuous"])
@pytest.mark.parametrize(
    "option", [block("docs/cluster.md", "clientRackEnv"), "[source]"], ids=["rack", "leader"]
)
def test_a_task_reads_in_its_rack(
    three: ProxiedCluster,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
    mode: str,
    option: str,
):
    in_its_rack = "clientRackEnv" in option
    racks = Racks(three, f"in-{application_id}")
    output = topic(1)
    text = JOB.format(
        app=application_id,
        mode=mode,
        brokers=three.proxied_servers,
        source=racks.topic,
        option=option,
        sink=bootstrap,
        output=output,
    )
    (tmp_path / "job.toml").write_text(text)
    with (
        Follower(bootstrap, output) as reader,
        running(tmp_path / "job.toml", ZONE=racks.rack) as job,
    ):

        def all_come_out() -> None:
            wanted = racks.write()
            reader.until(lambda seen: len(seen) >= len(wanted), timeout=PATIENCE_S)
            assert [record.value for record in reader.drain()] == wanted, job.text

        all_come_out()
        deadline = Deadline(PATIENCE_S)
        while in_its_rack and not racks.sent_by(racks.follower):
            assert not deadline.expired(), "the leader alone serves"
            all_come_out()
        by_leader = racks.sent_by(racks.leader)
        all_come_out()
        assert (racks.sent_by(racks.follower) > 0) == in_its_rack
        assert (racks.sent_by(racks.leader) == by_leader) == in_its_rack
        three.kill_broker(racks.follower)
        try:
            all_come_out()
            assert racks.sent_by(racks.leader) > by_leader
        finally:
            three.start_broker(racks.follower)
        all_come_out()
        assert job.terminate() == 0, job.text
