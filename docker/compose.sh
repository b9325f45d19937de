#!/usr/bin/env bash
# `docker compose -f docker/compose.yaml ...` with whatever compose there is: the plugin, or the older
# docker-compose program, which Debian packages and which is installed where there is neither.
set -euo pipefail
cd "$(dirname "$0")"
# The older program refuses a `name:` in the file.
export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-sparkonce}
if docker compose version >/dev/null 2>&1; then
  exec docker compose --file compose.yaml "$@"
fi
if ! command -v docker-compose >/dev/null; then
  if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    printf 'error: %s\n  where:  %s\n  cause:  %s\n  option: %s\n' \
      "no docker compose is installed" "docker compose, docker-compose" \
      "the plugin is missing" "install docker-compose-plugin or docker-compose" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker-compose \
    >/dev/null
fi
exec docker-compose --file compose.yaml "$@"
