"""The process that a test kills: runs one order of `jobs`, and prints its checkpoints as JSON.

    python -m connectors.testing.child order.json

Exit codes: 0 done or stopped in order, 3 an error of the pipeline, named on stderr.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from connectors.options.job_definition import JobDefinition
from connectors.options.job_file import load_job
from connectors.options.table import CONTINUOUS
from connectors.records.named_function import make_importable
from connectors.spark import StreamingDriver, build_session
from connectors.spark.job import run_job
from connectors.testing.jobs import QUICK_START, WITHOUT_END, Order
from transactions.coordinator import CheckpointReport
from transactions.errors import ConfigurationError, SparkOnceError
from transactions.restart_strategy import DEFAULT_RESTART_STRATEGY, NoRestart

FAILED = 3


def say(**fields: object) -> None:
    """Print one line for the watching test."""
    sys.stdout.write(orjson.dumps(fields).decode() + "\n")
    sys.stdout.flush()


def say_checkpoint(report: CheckpointReport) -> None:
    """Print a line about a checkpoint; on the query's thread."""
    say(checkpoint=report.checkpoint_id, records=report.records, replayed=report.replayed)


def main() -> int:
    """Run the order from the command line; return the exit code."""
    order = Order.read(Path(sys.argv[1]))
    try:
        if order.job_file:
            _run_job_file(order)
        else:
            _run_function(order)
    except SparkOnceError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return FAILED
    return 0


def _run_function(order: Order) -> None:
    module, _, name = order.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    session = build_session(order.app_id, master=order.master or "local[2]", conf=QUICK_START)
    offered: dict[str, Callable[[], object]] = {
        "spark": lambda: session,
        "driver": lambda: StreamingDriver(
            session,
            app_id=order.app_id,
            checkpoint=order.checkpoint,
            trigger=order.trigger,
            restart_strategy=DEFAULT_RESTART_STRATEGY if order.restarts else NoRestart(),
            on_checkpoint=say_checkpoint,
        ),
        "bootstrap_servers": lambda: order.bootstrap_servers,
        "app_id": lambda: order.app_id,
        "checkpoint": lambda: order.checkpoint,
        "trigger": lambda: order.trigger,
    }
    wanted = _wanted(order, function, offered)
    function(**wanted)
    driver = wanted.get("driver")
    if isinstance(driver, StreamingDriver):
        try:
            driver.run()
        finally:
            say(recommitted=driver.recommitted)


def _wanted(
    order: Order, function: Callable[..., object], offered: Mapping[str, Callable[[], object]]
) -> dict[str, Any]:
    """Choose arguments by the function's parameter names; an unknown name is an error."""
    wanted = dict(order.arguments)
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.name in offered and parameter.name not in wanted:
            wanted[parameter.name] = offered[parameter.name]()
    try:
        inspect.signature(function).bind(**wanted)
    except TypeError as error:
        raise ConfigurationError(
            "The driver function cannot be called.",
            where=order.function,
            cause=str(error),
            option=f"the test gives {sorted(order.arguments)}; also known: {sorted(offered)}",
        ) from error
    return wanted


def _run_job_file(order: Order) -> None:
    job = load_job(Path(order.job_file), os.environ)
    make_importable(job.path.parent)
    name = "spark.driver.extraJavaOptions"
    job = dataclasses.replace(
        job,
        app_id=f"{job.app_id}-{order.app_id}",
        checkpoint=order.checkpoint,
        driver=_driver_options(order, job),
        master=order.master or job.master,
        spark={**job.spark, name: f"{QUICK_START[name]} {job.spark.get(name, '')}".rstrip()},
    )
    stop = Stop()
    stop.install()
    run_job(
        job,
        stop=stop,
        on_started=lambda recommitted: say(recommitted=recommitted),
        on_checkpoint=say_checkpoint,
    )


def _driver_options(order: Order, job: JobDefinition) -> dict[str, Any]:
    """Return the driver options of the job file, with those of the test in their place."""
    options = {**job.driver, "trigger": order.trigger}
    if job.mode == CONTINUOUS and order.trigger == WITHOUT_END:
        del options["trigger"]  # records move all the time
    if not order.restarts:
        options["restart_strategy"] = NoRestart()
    return options


class Stop:
    """SIGTERM as the stop request for `run_job`."""

    def __init__(self) -> None:
        self.asked = False
        self._carry_out: Callable[[], None] | None = None

    def install(self) -> None:
        """Install the signal handler again, after Spark has installed its own."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def attach(self, carry_out: Callable[[], None]) -> None:
        """Set what a request does from now on; an earlier request takes effect at once."""
        self._carry_out = carry_out
        if self.asked:
            carry_out()

    def _on_signal(self, *_: object) -> None:
        self.asked = True
        if self._carry_out is not None:
            self._carry_out()


if __name__ == "__main__":
    sys.exit(main())
