"""The chaos auditor on corrupted histories: each must fail by its own name."""

from __future__ import annotations

import ast
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from connectors.cluster.local_cluster import LocalCluster
from tests.auditor import OpenTransaction
from tests.chaos import auditor
from tests.chaos.auditor import Ledger, LiveAuditor, final_audit
from tests.waiting import until

RECORDS = 40
KEYS = 3
Record = tuple[int, bytes, bytes]


def copies(records: int = RECORDS) -> list[Record]:
    """Return partition, key and value of what the workload writes."""
    return [
        (number % 2, b"key-%d" % (number % KEYS), b"%d-%d" % (number % 2, number // 2))
        for number in range(records)
    ]


def ledger_of(records: list[Record]) -> Ledger:
    ledger = Ledger()
    for offset, (partition, _, value) in enumerate(records):
        ledger.copy(partition, offset, value)
    return ledger


def test_a_whole_history_has_no_anomaly():
    assert ledger_of(copies()).anomalies == []


def test_a_duplicate_is_named_at_once():
    (found,) = ledger_of([*copies(), (0, b"key-0", b"0-7")]).anomalies
    assert found.startswith("duplicate: b'0-7'")


def test_what_the_input_holds_twice_may_be_seen_twice_and_no_more():
    ledger = Ledger(lambda value: 2 if value == b"0-7" else 1)
    for offset, (partition, _, value) in enumerate([*copies(), (0, b"", b"0-7")]):
        ledger.copy(partition, offset, value)
    assert ledger.anomalies == []
    assert ledger.doubled_input.total() == 1
    ledger.copy(0, RECORDS + 1, b"0-7")
    (found,) = ledger.anomalies
    assert found.startswith("duplicate: b'0-7'")


def test_a_loss_in_the_middle_or_a_torn_batch_is_a_gap():
    torn = [record for record in copies() if record[2] not in {b"1-5", b"1-6"}]
    (found,) = ledger_of(torn).anomalies
    assert found.startswith("gap: b'1-7'")


def test_a_changed_order_is_a_gap_and_a_duplicate():
    records = copies()
    records[4], records[6] = records[6], records[4]
    assert [found.split(":")[0] for found in ledger_of(records).anomalies] == ["gap", "duplicate"]


def test_a_foreign_value_and_a_record_in_another_partition():
    records = [*copies(), (0, b"key-0", b"1-20"), (0, b"key-0", b"nonsense")]
    assert [found.split(":")[0] for found in ledger_of(records).anomalies] == ["foreign value"] * 2


def test_a_count_that_is_said_twice_went_back():
    ledger = Ledger()
    for offset, value in enumerate([b"1", b"3", b"3"]):
        ledger.count(b"key-0", offset, value)
    (found,) = ledger.anomalies
    assert found.startswith("count went back")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as one:
        yield one


@pytest.fixture
def audit(cluster: LocalCluster) -> Callable[..., list[str]]:
    """Write an input and two outputs to a real broker, and return what the end audit finds."""

    def judge(output: list[Record], doubled: Record | None = None, **counts: int) -> list[str]:
        name = uuid.uuid4().hex[:8]
        topics = [f"{kind}-{name}" for kind in ("input", "copies", "counts")]
        for topic in topics:
            cluster.create_topic(topic, 2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        given = copies() if doubled is None else [*copies(), doubled]
        for topic, records in zip(topics, (given, output), strict=False):
            for partition, key, value in records:
                producer.produce(topic, value, key, partition=partition)
        for number in range(KEYS):
            key = f"key-{number}"
            count = counts.get(key.replace("-", "_"), len(range(number, RECORDS, KEYS)))
            producer.produce(topics[2], str(count), key, partition=0)
        assert producer.flush(30) == 0
        return final_audit(cluster.bootstrap_servers, *topics)

    return judge


def test_the_end_audit_of_a_whole_history(audit):
    assert audit(copies()) == []


def test_the_end_audit_finds_one_duplicate(audit):
    found = audit([*copies(), (1, b"key-0", b"1-3")])
    assert any(one.startswith("duplicate") for one in found)
    assert not any(one.startswith("lost") for one in found)


def test_the_end_audit_takes_what_the_input_holds_twice_for_no_duplicate(audit):
    twice = (1, b"key-1", b"1-3")
    count = len(range(1, RECORDS, KEYS)) + 1
    assert audit([*copies(), twice], twice, key_1=count) == []
    found = audit([*copies(), twice, twice], twice, key_1=count)
    assert any(one.startswith("duplicate") for one in found)
    found = audit(copies(), twice, key_1=count)
    assert [one.split(":")[0] for one in found] == ["lost at the tail"]


def test_the_end_audit_finds_one_loss_at_the_tail(audit):
    found = audit(copies()[:-1])
    assert [one.split(":")[0] for one in found] == ["lost at the tail"]


def test_the_end_audit_finds_a_count_that_is_one_short(audit):
    (found,) = audit(copies(), key_1=RECORDS // KEYS - 1)
    assert found.startswith("counts differ")


def test_s11_the_end_audit_counts_nothing_behind_an_open_transaction(cluster, monkeypatch):
    topics = [f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("input", "copies", "counts")]
    for topic in topics:
        cluster.create_topic(topic, 2)
    monkeypatch.setattr(auditor, "OPEN_S", 0.5)
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topics[0]}
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topics[1], b"0-0", partition=0)
    assert producer.flush(30) == 0
    with pytest.raises(OpenTransaction):
        final_audit(cluster.bootstrap_servers, *topics)
    producer.abort_transaction(30)


def test_the_live_auditor_names_a_duplicate_while_the_run_goes_on(cluster):
    topics = [f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("input", "copies", "counts")]
    for topic in topics:
        cluster.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    with LiveAuditor(cluster.bootstrap_servers, *topics, partitions=2) as live:
        for partition, key, value in copies():
            producer.produce(topics[0], value, key, partition=partition)
        for partition, key, value in [*copies(), copies()[0]]:
            producer.produce(topics[1], value, key, partition=partition)
        assert producer.flush(30) == 0
        until(lambda: live.ledger.anomalies)
        assert live.failure == ""
    assert live.ledger.anomalies[0].startswith("duplicate: b'0-0'")


def test_the_auditor_imports_nothing_of_the_product():
    tree = ast.parse(Path(auditor.__file__).read_text("utf-8"))
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {
        n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names
    }
    ours = {"__future__", "threading", "time", "collections", "collections.abc", "types", "typing"}
    assert modules - ours == {"confluent_kafka", "tests.auditor"}
