"""What a pipeline's metrics say, and what the brokers say to clients that know nothing of it."""

from __future__ import annotations

import contextlib
import re
import urllib.request

from confluent_kafka import Consumer, TopicPartition
from kafka.admin import KafkaAdminClient
from prometheus_client.parser import text_string_to_metric_families

OPEN_STATES = ["Ongoing", "PrepareCommit", "PrepareAbort"]


def scraped(log: str) -> dict[str, float]:
    """Read the endpoint that a log names; values summed over labels, and per ``name[phase]``."""
    found = re.search(r"http://127\.0\.0\.1:\d+/metrics", log)
    assert found is not None, log
    with urllib.request.urlopen(found[0], timeout=30) as answer:
        text = answer.read().decode()
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "le" in sample.labels:
                continue
            name = sample.name.removeprefix("sparkonce_")
            values[name] = values.get(name, 0.0) + sample.value
            if phase := sample.labels.get("phase"):
                values[f"{name}[{phase}]"] = sample.value
    return values


def open_transactions(bootstrap: str, application: str) -> int:
    """Count the transactions of an application that hold readers back."""
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        listings = admin.list_transactions(state_filters=OPEN_STATES).values()
    mine = f"{application}."
    return sum(one.transactional_id.startswith(mine) for each in listings for one in each)


def end_of(bootstrap: str, topic: str, partitions: int, isolation: str) -> int:
    """Return where an ordinary consumer comes to the end, added up over the partitions."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "view", "isolation.level": isolation}
    )
    with contextlib.closing(consumer):
        places = [TopicPartition(topic, number) for number in range(partitions)]
        return sum(consumer.get_watermark_offsets(one, timeout=30)[1] for one in places)


def group_offset(bootstrap: str, group: str, topic: str, partitions: int) -> int:
    """Return the committed offsets of a group, added up, as a lag tool reads them."""
    places = [TopicPartition(topic, number) for number in range(partitions)]
    settings = {"bootstrap.servers": bootstrap, "group.id": group}
    with contextlib.closing(Consumer(settings | {"isolation.level": "read_uncommitted"})) as member:
        return sum(one.offset for one in member.committed(places, timeout=30))
