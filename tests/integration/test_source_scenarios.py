"""The source under a driver that is stopped, rescaled and started again while its topics grow."""

from __future__ import annotations

import json
import os
import random
import secrets
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import DataFrame, SparkSession

from connectors.spark import StreamingDriver
from tests.auditor.reader import Follower, Record, read_committed
from tests.integration.in_process import (
    CONTINUOUS,
    Branch,
    Copying,
    copy,
    copy_in_place,
    per_key,
    send,
    stop,
    values,
)
from tests.integration.job_process import PATIENCE_S
from tests.tiers import long
from tests.waiting import until

Make = Callable[..., Copying]


@pytest.fixture
def make(spark: SparkSession, bootstrap: str, application_id: str, tmp_path: Path) -> Make:
    """Make the pipeline of a test: ``make(source, {output: copy}, min_partitions=2)``."""

    def pipeline(source: str, branches: dict[str, Branch], **options: Any) -> Copying:
        checkpoint = tmp_path / "checkpoint"
        return Copying(spark, bootstrap, application_id, checkpoint, source, branches, options)

    return pipeline


@long
def test_f34_f36_rescaled_with_data_written_while_stopped_and_partitions_never_read(
    make: Make, bootstrap: str, topic: Callable[..., str]
):
    """It began at latest: that is said once, and holds for nothing that comes later.

    4 > 2 > 4 > 2 tasks over 4 partitions, one of which is idle at first; at the end 2 more, with
    records that are older than the driver that finds them.
    """
    source, output = topic(4, "in"), topic(6, "out")
    sent: defaultdict[int, list[int]] = defaultdict(list)

    def write(low: int, high: int, *partitions: int) -> None:
        for place, partition in enumerate(partitions):
            mine = range(low + place, high, len(partitions))
            send(bootstrap, source, mine, partition=partition)
            sent[partition] += mine

    def run(tasks: int) -> None:
        def coalesced(rows: DataFrame) -> DataFrame:
            return copy_in_place(rows).coalesce(tasks)

        copying = make(source, {output: coalesced}, starting_offsets="latest")
        copying.run()
        written = copying.log().written  # a clean end has settled the decision
        assert bool(written) is bool(sent)
        assert len({one.subtask for one in written}) <= tasks
        assert by_partition(read_committed(bootstrap, output)) == dict(sent)

    write(0, 40, 0, 1, 2, 3)
    sent.clear()
    run(4)
    write(40, 80, 0, 1, 2)
    run(4)
    for number, tasks in enumerate([2, 4, 2], start=2):
        write(40 * number, 40 * (number + 1), 0, 1, 2, 3)
        run(tasks)
    grow(bootstrap, source, 6)
    write(200, 240, 0, 4, 5)
    run(4)


def by_partition(records: list[Record]) -> dict[int, list[int]]:
    """Return each partition's numbers in their order."""
    return {
        partition: values(r for r in records if r.partition == partition)
        for partition in sorted({record.partition for record in records})
    }


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    """Add partitions to a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
    until(
        lambda: len(admin.list_topics(timeout=10).topics[topic].partitions) >= partitions,
        pause_s=0.1,
    )


@long
@pytest.mark.parity(33)
def test_p13_progress_with_and_without_a_limit_and_two_branches_of_one_source(
    make: Make, bootstrap: str, topic: Callable[..., str]
):
    """Each branch scans the source: `numInputRows` counts that, as in a self-join of Spark's own.

    What was written is counted once, in the checkpoint's report.
    """
    source, output, other = topic(1, "in"), topic(1, "out"), topic(1, "other")
    send(bootstrap, source, range(25))
    copying = make(source, {output: copy, other: copy})
    driver = copying.reading(max_offsets_per_trigger=10).run()
    assert [one.records for one in driver.reports] == [20, 20, 10]
    limited = progress(driver)
    assert [one["endOffset"] for one in limited] == [{source: {"0": n}} for n in (10, 20, 25)]
    assert [one["latestOffset"] for one in limited] == [{source: {"0": 25}}] * 3
    assert [one["numInputRows"] for one in limited] == [2 * n for n in (10, 10, 5)]
    send(bootstrap, source, range(25, 65))
    (unlimited,) = progress(copying.run())
    assert unlimited["startOffset"] == {source: {"0": 25}}
    assert unlimited["endOffset"] == unlimited["latestOffset"] == {source: {"0": 65}}
    assert unlimited["numInputRows"] == 2 * 40
    for name in (output, other):
        assert values(read_committed(bootstrap, name)) == list(range(65))


def progress(driver: StreamingDriver) -> list[dict[str, Any]]:
    """Return what Spark says of the source, batch by batch."""
    assert driver.query is not None
    return [json.loads(one.json)["sources"][0] for one in driver.query.recentProgress]


#: How often each step is chosen.
STEPS = {"produce": 7, "see": 2, "grow": 1, "restart": 2}


class Stress:
    """What was sent so far, into which partitions, and the driver if one runs."""

    def __init__(self, copying: Copying, partitions: dict[str, int], seed: int) -> None:
        self.copying = copying
        self.sent: defaultdict[bytes | None, list[bytes | None]] = defaultdict(list)
        self._partitions = partitions
        self._rng = random.Random(seed)
        self._driver: StreamingDriver | None = None

    @property
    def running(self) -> bool:
        """Tell whether somebody is at work."""
        return self._driver is not None

    @property
    def count(self) -> int:
        """How many records there are."""
        return sum(map(len, self.sent.values()))

    def steps(self, number: int) -> list[str]:
        """Choose."""
        return self._rng.choices(list(STEPS), weights=list(STEPS.values()), k=number)

    def produce(self) -> None:
        """Append some records to one partition; the key says which."""
        name = self._rng.choice(list(self._partitions))
        partition = self._rng.randrange(self._partitions[name])
        key = f"{name}-{partition}".encode()
        numbers = range(self.count, self.count + self._rng.randint(1, 40))
        send(self.copying.bootstrap, name, numbers, partition=partition, key=key)
        self.sent[key] += [b"%06d" % number for number in numbers]

    def grow(self) -> None:
        """Add a partition and write to it, whether a driver runs or not."""
        name = self._rng.choice(list(self._partitions))
        self._partitions[name] += 1
        grow(self.copying.bootstrap, name, self._partitions[name])
        self.produce()

    def restart(self) -> None:
        """Stop the driver, or start the next one."""
        if self._driver is None:
            self._driver = self.copying.driver(trigger=CONTINUOUS)
            self._driver.start()
        else:
            stop(self._driver)
            self._driver = None

    def see(self, reader: Follower) -> None:
        """Wait until everything is visible, where somebody is at work."""
        if self.running:
            reader.until(lambda seen: len(seen) >= self.count, timeout=PATIENCE_S)


@pytest.mark.long
def test_p17_random_records_partitions_and_restarts(
    make: Make, bootstrap: str, topic: Callable[..., str]
):
    """50 steps by a seed (SPARKONCE_STRESS_SEED repeats one); every list arrives as it was sent."""
    seed = int(os.environ.get("SPARKONCE_STRESS_SEED", secrets.randbelow(10**6)))
    print(f"SPARKONCE_STRESS_SEED={seed}")
    partitions = {topic(1, "first"): 1, topic(2, "second"): 2}
    output = topic(1, "out")
    copying = make(",".join(partitions), {output: copy}, max_offsets_per_trigger=30)
    stress = Stress(copying, partitions, seed)
    with Follower(bootstrap, output) as reader:
        for step in ["restart", *stress.steps(50)]:
            if step == "see":
                stress.see(reader)
            else:
                getattr(stress, step)()
        if stress.running:
            stress.restart()
        copying.run()
        assert per_key(reader.drain()) == dict(stress.sent)
    assert per_key(read_committed(bootstrap, output)) == dict(stress.sent)
