"""What a session is given by default, by the kind of its master."""

from __future__ import annotations

import sys

import pytest

from connectors.spark.session import default_settings, worker_python

CLUSTER = "spark://host:7077"


def test_only_a_local_driver_hides_on_the_loopback_interface():
    assert default_settings("local[2]")["spark.driver.host"] == "127.0.0.1"
    assert default_settings("local[2]")["spark.driver.bindAddress"] == "127.0.0.1"
    assert not {"spark.driver.host", "spark.driver.bindAddress"} & set(default_settings(CLUSTER))


@pytest.mark.parametrize(
    ("master", "environment", "expected"),
    [
        ("local[2]", {"PYSPARK_PYTHON": "/other/python"}, sys.executable),
        (CLUSTER, {}, sys.executable),
        (CLUSTER, {"PYSPARK_PYTHON": "/other/python"}, "/other/python"),
    ],
)
def test_a_cluster_may_keep_its_python_elsewhere(master, environment, expected):
    assert worker_python(master, environment) == expected
