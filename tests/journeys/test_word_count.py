"""The word count that ships inside PySpark, with one word changed, on a topic that is written all
the time.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pyspark
import pytest

from tests.integration.query_script import plain_spark
from tests.integration.test_examples import started
from tests.journeys.conftest import PATIENCE_S, VALUE, Stranger
from tests.tiers import long
from transactions.clock import Deadline

SCRIPT = "examples/src/main/python/sql/streaming/structured_kafka_wordcount.py"
ROW = re.compile(r"^\| *(?P<word>\S+)\| *(?P<count>\d+)\|$", re.MULTILINE)
THREE = "Batch: 3"


@long
@pytest.mark.timeout(600)
def test_the_word_count_of_pyspark(stranger: Stranger):
    """Each value of the busy topic is a word that comes once, so no word may be counted twice."""
    text = (Path(pyspark.__file__).parent / SCRIPT).read_text("utf-8")
    assert text.count('.format("kafka")') == 1
    path = stranger.folder / "word_count.py"
    path.write_text(text.replace('.format("kafka")', '.format("kafka-exactly-once")'))
    words = [sys.executable, path.name, stranger.bootstrap, "subscribe", stranger.topic]
    out = stranger.folder / "out"
    with stranger.busy_topic(), started(words, stranger.folder, **plain_spark()) as process:
        deadline = Deadline(PATIENCE_S)
        while THREE not in out.read_text():
            said = (stranger.folder / "log").read_text()
            assert process.poll() is None, said
            assert not deadline.expired(), said
            deadline.pause(0.1)
    rows = list(ROW.finditer(out.read_text().partition(THREE)[0]))
    assert rows
    assert all(VALUE.fullmatch(row["word"]) for row in rows)
    assert {row["count"] for row in rows} == {"1"}
