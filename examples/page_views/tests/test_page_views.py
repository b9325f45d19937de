"""Five kills, and the counts are right; the counter in the database is not."""

import sqlite3
from collections import Counter

from page_views import count_in_state, count_outside

APPS = [f"app-{number % 4}" for number in range(240)]
VIEWS = Counter(APPS)
PER_CHECKPOINT = 40


def test_counts_are_exact_after_five_kills(sparkonce_topic, sparkonce_pipeline):
    views, counts = sparkonce_topic("views", partitions=2), sparkonce_topic("counts")
    views.produce((app, "a view") for app in APPS)
    pipeline = sparkonce_pipeline(count_in_state, views=views, counts=counts, most=PER_CHECKPOINT)
    pipeline.kill_at(
        "records_flushed@0",  # a worker, in phase 1
        "committables_collected@1",  # the driver, nothing is decided
        "decision_durable@2",  # between decision and commit
        "recovery_fenced",  # while that is recovered
        "all_committed@3",  # Spark does not know it yet
    )
    pipeline.run()

    told: dict[str, list[int]] = {app: [] for app in VIEWS}
    for record in counts.records():
        told[record.key.decode()].append(int(record.value))
    # Each checkpoint told each app's count once, and the next one went on from there.
    for app, numbers in told.items():
        assert numbers == sorted(set(numbers)), f"{app}: {numbers}"
        assert numbers[-1] == VIEWS[app]


def test_a_counter_outside_counts_too_much(sparkonce_topic, sparkonce_pipeline, tmp_path):
    """Read, increment, write beside the checkpoint: the same views, after one kill."""
    database = tmp_path / "views.sqlite"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE views (app TEXT PRIMARY KEY, count INTEGER)")
        connection.executemany("INSERT INTO views VALUES (?, 0)", [(app,) for app in VIEWS])
    views, seen = sparkonce_topic("views", partitions=2), sparkonce_topic("seen")
    views.produce((app, f"view {number}") for number, app in enumerate(APPS))
    pipeline = sparkonce_pipeline(
        count_outside, views=views, seen=seen, database=str(database), most=PER_CHECKPOINT
    )
    pipeline.kill_at("committables_collected@1")
    pipeline.run()

    pipeline.audit(input=views, output=seen, id="value").assert_exactly_once()
    with sqlite3.connect(database) as connection:
        counted = dict(connection.execute("SELECT app, count FROM views"))
    # The output is right, and the database has the views of the killed checkpoint twice.
    assert sum(counted.values()) == len(APPS) + PER_CHECKPOINT
