"""Which partition of `__consumer_offsets` keeps a group, and which ids are chosen by it."""

from __future__ import annotations

import pytest

from connectors.clients.offsets_topic import offsets_partition
from connectors.kafka.sink.producer_pool import new_slot
from transactions.sink import Owner


@pytest.mark.parametrize(
    ("group", "partition"),
    [
        ("", 0),
        ("app", 96801 % 50),
        ("sparkonce-flights", 1710192108 % 50),  # its hashCode() is -1710192108
        ("polygenelubricants", 0),  # its hashCode() is the number without an absolute value
    ],
)
def test_it_is_the_one_that_javas_hash_code_gives(group: str, partition: int):
    assert offsets_partition(group, 50) == f"__consumer_offsets-{partition}"


@pytest.mark.parametrize("partitions", [2, 3, 50])
def test_a3_no_id_has_its_group_beside_the_applications(partitions: int):
    owner = Owner(application_id="app", log_id="0123abcd", run_epoch=1)
    settings = {"bootstrap.servers": "127.0.0.1:1"}
    for _ in range(12):
        slot = new_slot(owner, settings, timeout_ms=60_000, offsets_partitions=partitions)
        own = offsets_partition(slot.producer.transactional_id, partitions)
        assert own != offsets_partition("app", partitions)


@pytest.mark.parametrize("partitions", [0, 1])
def test_where_no_other_partition_is_known_any_id_will_do(partitions: int):
    owner = Owner(application_id="app", log_id="0123abcd", run_epoch=1)
    settings = {"bootstrap.servers": "127.0.0.1:1"}
    assert new_slot(owner, settings, timeout_ms=60_000, offsets_partitions=partitions)
