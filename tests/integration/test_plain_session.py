"""One word in a session of the user's own: none of our settings, and not our time zone.

Other tests have the session of `build_session`, or a plain one of a machine whose zone is UTC. Here
it is New York. Adaptive execution is on, as Spark has it by default.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.auditor.reader import read_committed
from tests.integration.job_process import PATIENCE_S
from tests.integration.query_script import (
    COUNTED,
    FILE_SOURCE,
    FILES,
    PER_FILE,
    PLAIN,
    Script,
    plain_spark,
    text_files,
)
from tests.integration.test_examples import started
from tests.parity.query import at, produce
from tests.tiers import long

pytestmark = [long, pytest.mark.timeout(600)]

ZONE = "America/New_York"
IN_NEW_YORK = f"""SparkSession.builder.master("local[2]").config(
    "spark.sql.session.timeZone", "{ZONE}").config(
    "spark.sql.shuffle.partitions", "6").getOrCreate()
assert spark.conf.get("spark.sql.adaptive.enabled") == "true\""""
ALL = list(range(FILES * PER_FILE))
ONE_WORD, OWN_QUERY = "one_word.py", "own_query.py"

#: A query, a batch read and batch writes, each with times. `local` is a time of New York's clocks.
TIMES = """import json
from pyspark.sql import SparkSession
spark = {session}
WORD = "kafka-exactly-once"
place = {{"kafka.bootstrap.servers": "{bootstrap}"}}
reads = {{**place, "subscribe": "{source}", "startingOffsets": "earliest"}}
writes = {{**place, "writeTimestamp": "true", "checkpointLocation": "{folder}/jobs"}}
rows = spark.read.format(WORD).options(**reads).load()
told = rows.selectExpr(
    "CAST(CAST(value AS STRING) AS INT)", "unix_micros(timestamp)", "CAST(timestamp AS STRING)")
print(json.dumps([[*row] for row in told.collect()]))
stream = spark.readStream.format(WORD).options(**reads).load().select("value", "timestamp")
query = stream.writeStream.format(WORD).options(**writes).option("topic", "{by_query}")
query = query.option("checkpointLocation", "{folder}/query").trigger(availableNow=True).start()
query.awaitTermination()
shuffled = rows.repartition("value").selectExpr("value", "timestamp")
local = spark.sql("SELECT 'local' AS value, TIMESTAMP '{local}' AS timestamp")
for name, frame in {{"shuffled": shuffled, "local": local}}.items():
    writer = frame.write.format(WORD).mode("append").options(**writes, topic="{by_job}")
    writer.option("job.id", "{by_job}-" + name).save()
"""


def test_times_of_source_and_sink_are_right(bootstrap, topic, tmp_path: Path):
    """Arrow carries a time with the zone of the session; a record has milliseconds since 1970."""
    source, by_query, by_job = topic(2, "in"), topic(name="query"), topic(name="job")
    produce(bootstrap, source, range(5), range(5, 8))
    times = {number: at(number) for number in range(8)}
    local = f"{here(at(0)):%Y-%m-%d %H:%M:%S.%f}"
    names = {"source": source, "by_query": by_query, "by_job": by_job, "local": local}
    script = tmp_path / "times.py"
    script.write_text(
        TIMES.format(session=IN_NEW_YORK, bootstrap=bootstrap, folder=tmp_path, **names)
    )
    with started([sys.executable, script.name], tmp_path, **plain_spark()) as process:
        assert process.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
    told = json.loads((tmp_path / "out").read_text())
    assert {number: us for number, us, _ in told} == {n: 1000 * ms for n, ms in times.items()}
    assert all(datetime.fromisoformat(text) == here(times[n]) for n, _, text in told)
    written = {name: times_in(bootstrap, name) for name in (by_query, by_job)}
    assert written[by_query] == {str(n): ms for n, ms in times.items()}
    assert written[by_job] == {**written[by_query], "local": at(0)}


def here(milliseconds: int) -> datetime:
    """Return what a clock in New York shows."""
    utc = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return utc.astimezone(ZoneInfo(ZONE)).replace(tzinfo=None)


def times_in(bootstrap: str, topic: str) -> dict[str, int]:
    found = read_committed(bootstrap, topic)
    assert len({one.value for one in found}) == len(found)
    return {(one.value or b"").decode(): one.timestamp for one in found}


@pytest.fixture
def script(bootstrap, topic, tmp_path, application_id) -> Callable[..., Script]:
    """Make an example, in this session."""

    def made(changes: dict[str, str], example: str = ONE_WORD) -> Script:
        out = topic()
        own = {'"topic", "lines"': f'"topic", "{out}"'}
        if example == OWN_QUERY:
            names = {'topic="lines"': out, 'app_id="lines"': application_id}
            own = {said: said.replace("lines", name) for said, name in names.items()}
        own[PLAIN] = IN_NEW_YORK
        return Script(example, bootstrap, out, tmp_path, own | changes)

    return made


@pytest.mark.parametrize("example", [ONE_WORD, OWN_QUERY])
def test_a_shuffle_and_kills_after_the_decision(script, tmp_path, example: str):
    """Adaptive execution chooses the number of tasks. It must choose the same one where the broker
    has aborted what was decided, and the batch is written again.
    """
    files = FILE_SOURCE.replace("examples/*.py", str(text_files(tmp_path / "in")))
    shuffled = files + '\nlines = lines.repartition("value")'
    query = script({FILE_SOURCE: shuffled}, example)
    for batch in (1, 2):
        code, said = query.run(f"decision_durable@{batch}")
        assert code == {ONE_WORD: 1, OWN_QUERY: -signal.SIGKILL}[example], said
    query.abort_decided()
    assert query.values() == ALL[: 2 * PER_FILE]
    code, said = query.run()
    assert code == 0, said
    assert query.values() == ALL


def test_state_in_sparks_default_store_is_refused(script, tmp_path):
    files = FILE_SOURCE.replace("examples/*.py", str(text_files(tmp_path / "in")))
    complete = 'lines.writeStream.outputMode("complete").'
    counts = script({FILE_SOURCE: files + COUNTED, "lines.writeStream.": complete})
    code, said = counts.run()
    assert code == 1, said
    what = "The state of the query is kept in a way that no batch can be run again with."
    _, _, error = said.partition(f"{what}\n")
    where, cause, option = error.splitlines()[:3]
    found = Path(where.removeprefix("  where:  "))
    assert found.is_relative_to(tmp_path / "checkpoint/state"), said
    assert cause == (
        "  cause:  a late task of an older run could replace the state of a decided batch"
    )
    assert option == (
        "  look at: spark.sql.streaming.stateStore.checkpointFormatVersion=2 and the RocksDB state "
        "store, before the query's first start; build_session sets them"
    )
    assert counts.values() == []
