"""A user's pipeline under test: run as a process, killed at chosen points, audited.

pipeline.kill_at("decision_durable")    # runs until it dies there
pipeline.crashes(seed=7, times=3)       # the same at points that a seed chooses
pipeline.run()                          # to its end
pipeline.audit(input="flights", output="flights-clean", id="key").assert_exactly_once()
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from connectors.options.trigger import AVAILABLE_NOW
from connectors.testing.auditor.audit import Audit, Identify, audit
from connectors.testing.auditor.reader import Follower, Record
from connectors.testing.jobs import WITHOUT_END, Described, Order, child_command, python_path
from connectors.testing.run import Run, running
from transactions.clock import Deadline
from transactions.crash_points import HEALING_POINTS, KNOWN, POINTS

RUN_SECONDS = 180.0
_ORDINARY: Final = tuple(point for point in POINTS if point not in HEALING_POINTS)


class Pipeline:
    """One pipeline of one test: its checkpoint, and its processes one after the other.

    Args:
        job: the job to run.
        bootstrap_servers: the broker.
        folder: for its checkpoint and the test's other files.
        app_id: application id of this test.
        arguments: parameters of a function; environment variables of a job file or a command,
            which also get BOOTSTRAP_SERVERS, APP_ID and CHECKPOINT.
        trigger: of functions that take a `driver`, and of job files.
        master: Spark's master URL; without it two local cores, or the job file's master.
        environment: variables of the process.
    """

    def __init__(
        self,
        job: Described,
        *,
        bootstrap_servers: str,
        folder: Path,
        app_id: str,
        arguments: Mapping[str, Any] | None = None,
        trigger: str = AVAILABLE_NOW,
        master: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.folder = folder
        self.app_id = app_id
        self.checkpoint = folder / "checkpoint"
        #: The result of each run, in order; a failed audit shows it.
        self.story: list[str] = []
        self._job = job
        self._arguments = dict(arguments or {})
        self._trigger = trigger
        self._master = master
        self._environment = dict(environment or {})

    @property
    def crash_points(self) -> tuple[str, ...]:
        """Points that every run with work reaches, in the order of a checkpoint.

        `kill_at` knows more points, which only some pipelines reach: docs/testing.md.
        """
        return _ORDINARY

    # -- running ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(
        self, *, crash_at: str = "", trigger: str = "", **environment: str
    ) -> Iterator[Run]:
        """Start a process; it is gone when the block ends.

        Args:
            crash_at: a crash point, as ``point`` or ``point@checkpoint``; it crashes once.
            trigger: replaces the pipeline's trigger in this process.
            environment: variables of this process.
        """
        number = len(self.story)
        self.story.append("started")
        variables = {**self._environment, **environment}
        if crash_at:
            variables["SPARKONCE_CRASH_AT"] = _checked(crash_at)
            variables["SPARKONCE_CRASH_ONCE"] = str(self._crashed(number))
        command, more = self._command(number, trigger or self._trigger, restarts=not crash_at)
        self.folder.mkdir(parents=True, exist_ok=True)
        with running(command, environment={**more, **variables}, folder=self.folder) as run:
            try:
                yield run
            finally:
                died = f"killed at {crash_at}" if self._crashed(number).exists() else "ran"
                code = run.process.poll()
                ended = "killed by the test" if code is None else f"exit {code}"
                self.story[number] = f"{died}; {ended}"

    def run(self, *, timeout: float = RUN_SECONDS) -> Run:
        """Run it to its end.

        Raises:
            AssertionError: it failed, or did not end in time; the text is its last output.
        """
        with self.running() as run:
            code = run.wait(timeout)
        if code != 0:
            raise AssertionError(f"the pipeline failed: {run.text()}")
        return run

    def run_until(
        self,
        condition: Callable[[list[Record]], bool],
        *,
        topic: str,
        timeout: float = RUN_SECONDS,
    ) -> Run:
        """Run it until a reader has seen enough, then stop it in order (SIGTERM).

        Args:
            condition: gets the topic's committed records so far, in the order they came.
            topic: the topic that the reader follows.
            timeout: seconds for the whole call.

        Raises:
            AssertionError: the condition did not hold in time, or the pipeline failed.
        """
        deadline = Deadline(timeout)
        trigger = WITHOUT_END if self._trigger == AVAILABLE_NOW else ""
        follower = Follower(self.bootstrap_servers, topic)
        with follower as reader, self.running(trigger=trigger) as run:
            while not condition(list(reader.records)):
                if run.process.poll() is not None:
                    # Its last commit may still be under way to the reader.
                    if not condition(reader.drain()):
                        raise AssertionError(f"it ended before the condition held; {run.text()}")
                    break
                if deadline.expired():
                    raise AssertionError(f"not within {timeout} s; {run.text()}")
                deadline.pause(0.05)
            code = run.stop(deadline.remaining())
        if code != 0:
            raise AssertionError(f"the pipeline failed: {run.text()}")
        return run

    # -- crashes ------------------------------------------------------------------------------

    def kill_at(self, *points: str, timeout: float = RUN_SECONDS) -> None:
        """Start it once per point, and let it die there (SIGKILL).

        A point in the driver kills the driver. A point in a Python worker kills that worker; the
        run then ends as after such a death: failed, or well if Spark runs the task again. The
        driver's own restart strategy is off in these runs, so that the next run finds work.

        Args:
            points: ``name`` or ``name@checkpoint``; the names of `crash_points`, and those of
                docs/testing.md that only some pipelines reach.
            timeout: seconds for each run.

        Raises:
            AssertionError: a run ended, or went on, without reaching its point.
        """
        for point in map(_checked, points):
            number = len(self.story)
            with self.running(crash_at=point) as run:
                run.wait(timeout)
            if not self._crashed(number).exists():
                raise AssertionError(
                    f"the pipeline never came to {point!r}: was there a checkpoint left to do? "
                    f"(maxOffsetsPerTrigger makes several) {run.text()}"
                )

    def crashes(
        self,
        *,
        seed: int,
        times: int = 3,
        points: Sequence[str] = _ORDINARY,
        timeout: float = RUN_SECONDS,
    ) -> list[str]:
        """Kill it at `times` points that the seed chooses, one run each; return their names.

        Each crash needs an unfinished checkpoint: give the input at least that many.
        """
        chosen = random.Random(seed).choices(points, k=times)  # noqa: S311 - the seed replays it
        self.story.append(f"seed {seed} chose {', '.join(chosen)}")
        self.kill_at(*chosen, timeout=timeout)
        return chosen

    # -- the end ------------------------------------------------------------------------------

    def audit(
        self,
        *,
        input: str | Sequence[str],  # noqa: A002 - the word for it
        output: str | Sequence[str],
        id: str | Identify = "record",  # noqa: A002 - as in `sparkonce verify --key-id`
        output_id: str | Identify | None = None,
        expected: Callable[[Record], bool] | None = None,
        timeout: float = 60.0,
    ) -> Audit:
        """Read input and output as any consumer would, and compare; see `auditor.audit`."""
        return audit(
            self.bootstrap_servers,
            input=input,
            output=output,
            id=id,
            output_id=output_id,
            expected=expected,
            story=self.story,
            timeout=timeout,
        )

    # -- steps --------------------------------------------------------------------------------

    def _crashed(self, number: int) -> Path:
        return self.folder / f"crashed-{number}"

    def _command(
        self, number: int, trigger: str, *, restarts: bool
    ) -> tuple[Sequence[str], dict[str, str]]:
        """Return the words and the variables of the next process."""
        variables = {"PYTHONPATH": python_path()}
        if not self._job.function:
            variables |= {
                "BOOTSTRAP_SERVERS": self.bootstrap_servers,
                "APP_ID": self.app_id,
                "CHECKPOINT": str(self.checkpoint),
                **{name: str(value) for name, value in self._arguments.items()},
            }
        if self._job.command:
            return self._job.command, variables
        self.folder.mkdir(parents=True, exist_ok=True)
        order = Order(
            function=self._job.function,
            job_file=self._job.job_file,
            arguments=self._arguments if self._job.function else {},
            bootstrap_servers=self.bootstrap_servers,
            app_id=self.app_id,
            checkpoint=str(self.checkpoint),
            trigger=trigger,
            master=self._master,
            restarts=restarts,
        )
        written = self.folder / f"order-{number}.json"
        order.write(written)
        return child_command(written), variables


def _checked(point: str) -> str:
    if point.partition("@")[0] not in KNOWN:
        raise ValueError(f"there is no crash point {point!r}; known: {', '.join(KNOWN)}")
    return point
