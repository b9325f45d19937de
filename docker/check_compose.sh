#!/usr/bin/env bash
# Brings the compose set up, checks it, runs the job's container and a Spark job with Python tasks
# in it, and takes everything down again.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
# A project of its own: the data of a set that someone works with is never removed.
export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-sparkonce-check}

finish() {
  local code=$?
  if [ "$code" != 0 ]; then
    docker/compose.sh ps || true
    docker/compose.sh logs --no-color --tail=20 || true
  fi
  docker/compose.sh down --volumes --remove-orphans >/dev/null 2>&1 || true
  exit "$code"
}
trap finish EXIT

docker/compose.sh up -d
PYTHONPATH=. "$python" docker/check_compose.py
docker/compose.sh run -T --rm job </dev/null
docker/compose.sh run -T --rm job python -c '
import os
import socket

from pyspark.sql import SparkSession

spark = SparkSession.builder.master(os.environ["SPARK_MASTER"]).getOrCreate()
hosts = set(spark.sparkContext.range(4, numSlices=2).map(lambda _: socket.gethostname()).collect())
assert hosts and socket.gethostname() not in hosts, hosts
print("compose: Python tasks ran on the worker", *hosts)
' </dev/null
