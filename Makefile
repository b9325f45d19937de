# Habits for people; each line is a command that can be typed as well. `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv archive lint test test-all unit integration parity chaos demo hdfs s3 bench bench-peers docs docker-image compose-check clean mutations

# The first Python 3.11 or newer; PYTHON=... chooses another.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
BIN := .venv/bin
STAMP := .venv/.installed
DOCS_STAMP := .venv/.docs-installed
# A pipeline is a dozen Python processes; where this is set, each compiles all of our modules again.
unexport PYTHONDONTWRITEBYTECODE
# Options for pytest, sparkonce demo or the benchmarks: make unit ARGS='-k outcome -x'
ARGS ?=

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

venv: $(STAMP)  ## make .venv with everything for development

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { printf 'error: %s\n  where:  %s\n  cause:  %s\n  option: %s\n' \
	  "no Python 3.11 or newer with venv was found" "python3.13 ... python3 on PATH" \
	  "Debian and Ubuntu: apt-get install python3 python3-venv" "PYTHON=(not set)" >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group dev --editable '.[demo,testing]'
	@touch $@

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

archive: $(STAMP)  ## Spark's classes, ready to map: each of its starts takes half the time
	$(BIN)/python -m connectors.spark.class_archive

lint: $(STAMP)  ## ruff (check, format), mypy --strict, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Four processes on two cores: much of an integration test is waiting for a JVM, or for a timeout. The
# long tests wait less: with four of them the load was 20, and one that needs a core for a minute (an
# installation, the archive of classes) took five.
PROCESSES = 4
PYTEST = $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal
# `-m 'not long'` is pytest's default here: which tests are long is said at each of them, and why in
# tests/README.md.
test: lint archive  ## lint, then every test that is not `long`: before a change lands
	$(PYTEST) $(ARGS)

test-all: PROCESSES = 3
test-all: lint archive  ## lint, then every test; SPARKONCE_TEST_BROKER=embedded|testcontainers|both
	$(PYTEST) -m '' $(ARGS)

unit: $(STAMP)  ## tests without a broker: a minute
	$(PYTEST) tests/unit tests/simulation $(ARGS)

integration: archive  ## of make test, those with a real broker and a real Spark
	$(PYTEST) tests/integration $(ARGS)

parity: archive  ## the table of tests/parity: what Spark's own Kafka source and sink can do, row by row
	$(PYTEST) tests -m parity $(ARGS)

docs: $(DOCS_STAMP)  ## the documentation site in build/site; a dead link is an error
	rm -rf build/pages build/site
	mkdir -p build/pages
	git ls-files -z '*.md' LICENSE docs examples benchmarks tests transactions | sort -zu | tar -c --null -T- | tar -xC build/pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean --quiet

mutations: $(STAMP)  ## each rule of the protocol broken in a copy; its test must be red
	$(BIN)/python -m tests.mutations $(ARGS)

chaos: $(STAMP)  ## kills, freezes, lost and late requests, MINUTES=10; SEED=7 replays a schedule; MODE=continuous, BROKERS=1
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(MODE),--mode $(MODE)) $(if $(BROKERS),--brokers $(BROKERS)) $(ARGS)

demo: $(STAMP)  ## the main job, killed twice, and its proof
	$(BIN)/sparkonce demo $(ARGS)

hdfs: $(STAMP)  ## HDFS on this machine until ctrl-C; make demo ARGS="--checkpoint hdfs://127.0.0.1:PORT/demo"
	$(BIN)/python -m tests.hdfs_cluster $(ARGS)

s3: $(STAMP)  ## an S3 store on this machine until ctrl-C; it prints how to use it with make demo
	$(BIN)/python -m tests.s3_store $(ARGS)

bench: $(STAMP)  ## both modes as JSON lines, beside the peers that are installed; PEERS=none|all|flink-100,...
	$(BIN)/python -m benchmarks.run $(if $(PEERS),--peers $(PEERS)) $(ARGS)

bench-peers: $(STAMP)  ## every peer (installed first, once) and our modes in one run: a table; ARGS="--keep NAME" draws it
	$(BIN)/python -m benchmarks.run --peers all --modes $(or $(MODES),micro-batch,continuous,continuous-10,continuous-100,continuous-1000) $(ARGS)

docker-image: $(STAMP)  ## sparkonce/broker:local and sparkonce/app:local, without a registry
	docker/engine.sh start
	docker/build.sh

compose-check: docker-image  ## bring the compose set up once and check it
	docker/check_compose.sh

clean:  ## remove what was built, the .venv too
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
