"""A table as the source of a query: Delta Lake, read by version and file, into the one word.

Delta Lake 4.4.0 is built for Spark 4.2. Its older reader needs a class that Spark 4.3 has changed;
the newer one, `v2.enableMode=STRICT` over a table of a catalog, runs. The jars are pinned.
"""

from __future__ import annotations

import pytest

from tests.integration.query_script import FILE_SOURCE, PER_FILE, PLAIN, Script
from tests.pinned_test_jars import pinned_jars
from tests.tiers import long

POINTS = ("offsets_sent", "decision_durable", "one_committed")
#: Files of the table's first version; the second one has the others.
FIRST = 2
#: To be filled in: jars, folder of the table, files of its first version, and of both. One core
#: writes them one after the other: a new query reads them in the order of their times.
TABLE = """(SparkSession.builder.master("local[1]")
    .config("spark.jars", "{jars}")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.databricks.delta.v2.enableMode", "STRICT")
    .getOrCreate())
import os
def numbers(first, end):
    files = spark.range(first * {rows}, end * {rows}, numPartitions=end - first)
    return files.selectExpr("CAST(id AS STRING) AS value")
if os.path.exists("{table}"):
    spark.sql("CREATE TABLE numbers USING delta LOCATION '{table}'")
else:
    numbers(0, {first}).write.format("delta").option("path", "{table}").saveAsTable("numbers")
    numbers({first}, {both}).writeTo("numbers").append()"""
READ = 'spark.readStream.option("maxFilesPerTrigger", 1).table("numbers")'


@long
@pytest.mark.timeout(900)
def test_a_query_over_a_table_that_dies_in_its_batches(bootstrap, topic, tmp_path):
    """A file of the table is a batch. Each kill is at the next point, in the next batch."""
    out = topic()
    session = TABLE.format(
        jars=",".join(map(str, pinned_jars("delta-lake"))),
        rows=PER_FILE,
        table=tmp_path / "table",
        first=FIRST,
        both=len(POINTS) + 1,
    )
    changes = {'"topic", "lines"': f'"topic", "{out}"', FILE_SOURCE: READ, PLAIN: session}
    query = Script("one_word.py", bootstrap, out, tmp_path, changes)

    def died(point: str, code: int, said: str) -> None:
        assert code == 1, (point, said)

    query.die_at_each(POINTS, died)
    versions = [path.name for path in (tmp_path / "table/_delta_log").glob("*.json")]
    assert len(versions) == 2, "the table was made once, and appended to once"
