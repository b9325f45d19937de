"""Two drivers on one checkpoint, where Spark's new file gets its name by a look and then a step
that replaces: a rename in a folder, a copy in S3.

An older driver can stop between the two, and put its plan over the one that a newer driver has
decided. Spark then plans from the wrong file at each later start.
"""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import orjson
import pytest

from tests.faulty_store import FaultyStore
from tests.integration.job_process import PATIENCE_S
from tests.integration.pipeline_process import Pipeline
from tests.integration.test_exactly_once import pipeline  # noqa: F401
from tests.preloaded import library
from tests.s3_store import BUCKET, S3Store, hadoop_settings, variables
from tests.tiers import long
from tests.waiting import until
from transactions.errors import FencedError

NEVER = 10**9
SOURCE = Path(__file__).parents[1] / "held_rename.c"
pytestmark = [long, pytest.mark.timeout(600)]

#: The file that the older driver writes late, and where the newer one is killed.
CASES = [
    ("offsets/2", "decision_durable@2"),  # the decided batch
    ("offsets/2", "decision_durable@3"),  # where the decided batch begins
    ("spark/metadata", "decision_durable@0"),  # which query it is
]


class SlowCopy(FaultyStore):
    """Holds the first copy to a name until it is let go; carries all else.

    Attributes:
        held: a copy waits.
        go: lets it go.

    Args:
        store: the store's own URL.
        name: how the copy's target ends.
    """

    def __init__(self, store: str, name: str) -> None:
        super().__init__(store, shift=1, every=NEVER, storm_every=NEVER)
        self.held, self.go = threading.Event(), threading.Event()
        self._name = name
        self._first = threading.Lock()

    def before(self, request: BaseHTTPRequestHandler) -> None:
        """See `FaultyStore.before`."""
        is_copy = request.headers.get("x-amz-copy-source") and request.path.endswith(self._name)
        if is_copy and self._first.acquire(blocking=False):
            self.held.set()
            assert self.go.wait(PATIENCE_S)


@pytest.mark.parametrize(("name", "crash_at"), CASES)
def test_x15_a_plan_that_an_older_driver_copies_over_the_decided_one(
    pipeline: Pipeline, s3: S3Store, name: str, crash_at: str
):
    pipeline.checkpoint = f"s3://{BUCKET}/{pipeline.application_id}"
    with SlowCopy(s3.endpoint, name) as wire:
        pipeline.environment = lambda: variables(wire.endpoint)
        conf = {f"spark.{key}": it for key, it in hadoop_settings(wire.endpoint).items()}
        options = {"conf": orjson.dumps(conf).decode()}
        with an_older_driver(pipeline, wire.held.is_set, wire.go.set, **options):
            overtaken(pipeline, crash_at, **options)
        goes_on(pipeline, crash_at, **options)


@pytest.mark.parametrize(("name", "crash_at"), CASES)
def test_x15_a_plan_that_an_older_driver_renames_over_the_decided_one(
    pipeline: Pipeline, tmp_path: Path, name: str, crash_at: str
):
    held, goes = tmp_path / "held", tmp_path / "goes"
    older = {
        "LD_PRELOAD": str(library(SOURCE, tmp_path)),
        "SPARKONCE_RENAME_HELD_TO": name,
        "SPARKONCE_RENAME_HELD": str(held),
        "SPARKONCE_RENAME_GOES": str(goes),
    }
    pipeline.environment = lambda: dict(older)
    with an_older_driver(pipeline, held.exists, goes.touch):
        pipeline.environment = dict
        overtaken(pipeline, crash_at)
    goes_on(pipeline, crash_at)


@contextlib.contextmanager
def an_older_driver(
    pipeline: Pipeline, is_held: Callable[[], bool], go: Callable[[], None], **options: str
) -> Iterator[None]:
    """Run a driver that is held, for a while; then it goes on, and finds that it is fenced."""
    with pipeline.running(**options) as older:
        until(is_held, PATIENCE_S, older.text)
        yield
        go()
        assert older.wait() != 0
        assert FencedError.__name__ in older.text()


def overtaken(pipeline: Pipeline, crash_at: str, **options: str) -> None:
    """Run a newer driver, whose batches end at other offsets, until it is killed."""
    pipeline.produce(30)
    code, newer = pipeline.run_once(crash_at=crash_at, max_offsets=48, **options)
    assert code == -signal.SIGKILL, newer.text()


def goes_on(pipeline: Pipeline, crash_at: str, **options: str) -> None:
    code, last = pipeline.run_once(**options)
    assert code == 0, last.text()
    assert last.replays() == [int(crash_at.partition("@")[2])]
    pipeline.audit()
