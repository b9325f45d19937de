"""The home of a local Spark is PySpark's own, without the zip that nothing compiled is kept of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connectors.spark import spark_home


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path


def test_it_links_to_all_but_the_zip():
    home = spark_home.linked_home()
    installed = spark_home.installed_home()
    assert (installed / "python" / "lib" / "pyspark.zip").is_file()
    assert {one.name for one in installed.iterdir()} - {one.name for one in home.iterdir()} == {
        "python"
    }
    assert (home / "bin" / "spark-submit").samefile(installed / "bin" / "spark-submit")
    assert spark_home.linked_home() == home
    assert [one.name for one in home.parent.iterdir()] == [home.name]  # nothing half made is left


def test_the_variable_is_set_for_the_start_only():
    with spark_home.local_home():
        assert os.environ["SPARK_HOME"] == str(spark_home.linked_home())
    assert "SPARK_HOME" not in os.environ


def test_the_home_of_a_user_stays(monkeypatch):
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with spark_home.local_home():
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_where_it_cannot_be_made_spark_has_its_own(cache):
    (cache / "sparkonce").write_text("a file where a folder is due")
    assert spark_home.linked_home() is None
    with spark_home.local_home():
        assert "SPARK_HOME" not in os.environ
