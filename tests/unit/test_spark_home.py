"""The home of a local Spark is PySpark's own, without the zip that nothing compiled is kept of."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from connectors.spark import session, spark_home
from connectors.spark.driver_jvm import jvm_environment
from transactions.errors import ConfigurationError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path


def test_it_links_to_all_but_the_zip():
    home = spark_home.linked_home()
    installed = spark_home.installed_home()
    assert (installed / "python" / "lib" / "pyspark.zip").is_file()
    assert not (home / "python").exists()
    left_out = {one.name for one in installed.iterdir()} - {one.name for one in home.iterdir()}
    assert left_out - {"__pycache__"} == {"python"}  # that comes and goes with a variable
    assert (home / "bin" / "spark-submit").samefile(installed / "bin" / "spark-submit")
    assert spark_home.linked_home() == home
    assert [one.name for one in home.parent.iterdir()] == [home.name]  # nothing half made is left


@pytest.mark.parametrize("lost", ["bin", "jars"])
def test_one_that_lost_a_link_is_made_again(lost):
    home = spark_home.linked_home()
    (home / lost).unlink()
    assert spark_home.linked_home() == home
    assert (home / lost).is_dir()
    assert [one.name for one in home.parent.iterdir()] == [home.name]


def test_one_that_another_start_has_just_made_stays():
    """Its JVM may be reading it."""
    home = spark_home.linked_home()
    made = home.stat().st_ino
    entries = [one.name for one in home.iterdir()]
    spark_home._make(home, spark_home.installed_home(), entries)
    assert home.stat().st_ino == made


def test_a_distribution_that_pyspark_prefers_stays(monkeypatch, tmp_path):
    """`PYSPARK_HADOOP_VERSION=... pip install pyspark` puts another Spark beside its own."""
    monkeypatch.setattr(spark_home, "_find_spark_home", lambda: str(tmp_path))
    assert spark_home.linked_home() is None
    assert spark_home.home_of_jvm() == spark_home.installed_home()


def test_two_threads_that_start_sessions_take_turns():
    both = threading.Barrier(2)

    def start() -> str:
        both.wait()
        with jvm_environment(spark_home.local_home):
            time.sleep(0.01)  # a JVM starts
            return os.environ["SPARK_HOME"]

    with ThreadPoolExecutor() as pool:
        homes = [one.result() for one in [pool.submit(start), pool.submit(start)]]
    assert set(homes) == {str(spark_home.linked_home())}
    assert "SPARK_HOME" not in os.environ


def test_the_variable_is_set_for_the_start_only():
    home = spark_home.linked_home()
    with jvm_environment(spark_home.local_home):
        assert os.environ["SPARK_HOME"] == str(home)
        assert spark_home.home_of_jvm() == home
    assert "SPARK_HOME" not in os.environ


def test_the_home_of_a_user_stays(monkeypatch):
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with jvm_environment(spark_home.local_home):
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert spark_home.home_of_jvm() == Path("/opt/spark")


def test_where_it_cannot_be_made_spark_has_its_own(cache):
    (cache / "sparkonce").write_text("a file where a folder is due")
    assert spark_home.linked_home() is None
    with jvm_environment(spark_home.local_home):
        assert "SPARK_HOME" not in os.environ


def a_spark(home: Path, version: str) -> Path:
    (home / "jars").mkdir(parents=True)
    (home / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return home


@pytest.mark.parametrize("version", ["4.3.0", "4.3.7-vendor-1", "4.3.0-SNAPSHOT"])
def test_a_spark_of_the_same_line_is_taken(monkeypatch, tmp_path, version):
    monkeypatch.setattr(spark_home.pyspark, "__version__", "4.3.1")
    monkeypatch.setenv("SPARK_HOME", str(a_spark(tmp_path / "spark", version)))
    spark_home.check_home()


def test_one_built_from_source_is_taken(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    spark_home.check_home()


@pytest.mark.parametrize(
    ("version", "cause"), [("3.5.4", "Spark 3.5.4, and PySpark"), (None, "there is no Spark")]
)
def test_another_spark_is_refused_before_it_starts(monkeypatch, tmp_path, version, cause):
    """A variable that is left from another installation: PySpark fails with one of its own."""
    home = a_spark(tmp_path / "spark", version) if version else tmp_path / "gone"
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setattr(session, "ensure_jvm", lambda *_: pytest.fail("it was started"))
    with pytest.raises(ConfigurationError, match="SPARK_HOME names") as refused:
        session.build_session("test")
    error = refused.value
    assert (error.where, cause in error.cause) == (str(home), True)
    assert "unset it" in error.option
