#!/usr/bin/env bash
# Makes sure that a Docker engine answers, starting one of our own where there is none (Debian or
# Ubuntu, root, no systemd needed: CI, a bare virtual machine).
#
#   docker/engine.sh start    nothing to do where an engine answers already
#   docker/engine.sh stop     stops the engine that `start` started, and no other
#   docker/engine.sh status   exit code 0 when an engine answers
#
# SPARKONCE_DOCKER_DIR   data, log and pid of our own engine (default: a folder in the user's cache)
# SPARKONCE_DOCKER_WAIT  seconds that the engine may take to answer (default 60)
set -euo pipefail

dir=${SPARKONCE_DOCKER_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sparkonce/docker}
wait_seconds=${SPARKONCE_DOCKER_WAIT:-60}
pid_file=$dir/dockerd.pid
log=$dir/dockerd.log

say() { printf 'engine: %s\n' "$*" >&2; }

fail() {
  printf 'error: %s\n  where:  %s\n  cause:  %s\n  option: %s\n' "$1" "$2" "$3" "$4" >&2
  exit 1
}

answers() { command -v docker >/dev/null && timeout 10 docker info >/dev/null 2>&1; }

is_our_engine() {
  local pid
  pid=$(cat "$pid_file" 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]
}

install_engine() {
  command -v dockerd >/dev/null && command -v docker >/dev/null && return
  command -v apt-get >/dev/null || fail "no Docker engine answers and none can be installed" \
    "$(uname -s), without apt-get" "only Debian and Ubuntu are installed by this script" \
    "start Docker yourself, or set DOCKER_HOST=${DOCKER_HOST:-(not set)}"
  say "installing docker.io"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # The package's own start script fails without systemd, which is no error here: we start it.
  apt-get install -y -qq --no-install-recommends docker.io iptables >/dev/null
  # Newer releases package the client by itself.
  command -v docker >/dev/null \
    || apt-get install -y -qq --no-install-recommends docker-cli >/dev/null
}

# Starts dockerd with the given options; returns 1 when it ended before it answered.
launch() {
  # A machine that was cut off leaves the file, and dockerd refuses when its number is in use again.
  is_our_engine || rm -f "$pid_file"
  : >"$log"
  setsid nohup dockerd --data-root "$dir/data" --pidfile "$pid_file" "$@" >"$log" 2>&1 </dev/null &
  local launched=$! deadline=$((SECONDS + wait_seconds))
  while ! answers; do
    kill -0 "$launched" 2>/dev/null || return 1
    if ((SECONDS > deadline)); then
      kill "$launched" 2>/dev/null || true
      wait "$launched" 2>/dev/null || true
      return 1
    fi
    sleep 0.5
  done
}

start() {
  if answers; then
    say "an engine answers: $(docker version --format '{{.Server.Version}}')"
    return
  fi
  [ -z "${DOCKER_HOST:-}" ] || fail "the Docker engine does not answer" "DOCKER_HOST" \
    "the engine named there is down" "DOCKER_HOST=$DOCKER_HOST"
  [ "$(id -u)" = 0 ] || fail "no Docker engine answers" "user $(id -un)" \
    "only root can start one" "start Docker yourself, or run: sudo docker/engine.sh start"
  install_engine
  mkdir -p "$dir"
  # Each line is a machine that the one before did not work on: no netfilter, no overlayfs.
  local options
  for options in "" "--iptables=false --ip6tables=false" \
    "--iptables=false --ip6tables=false --storage-driver=vfs"; do
    say "starting dockerd $options"
    # shellcheck disable=SC2086  # the options are words
    if launch $options; then
      say "started, storage driver $(docker info --format '{{.Driver}}'), log $log"
      return
    fi
    say "it ended or did not answer: $(grep -E 'level=(error|fatal)|failed' "$log" | tail -n 1)"
  done
  tail -n 20 "$log" >&2
  fail "the Docker engine could not be started" "$log" "the last lines above" \
    "SPARKONCE_DOCKER_WAIT=$wait_seconds, SPARKONCE_DOCKER_DIR=$dir"
}

stop() {
  if ! is_our_engine; then
    say "no engine of ours runs"
    return
  fi
  local pid
  pid=$(cat "$pid_file")
  kill "$pid"
  for _ in $(seq 120); do
    kill -0 "$pid" 2>/dev/null || { say "stopped"; return; }
    sleep 0.5
  done
  fail "the Docker engine does not stop" "process $pid" "a container hangs" "log: $log"
}

case "${1:-start}" in
  start) start ;;
  stop) stop ;;
  status) answers ;;
  *) fail "unknown verb" "docker/engine.sh $1" "start, stop and status exist" "-" ;;
esac
