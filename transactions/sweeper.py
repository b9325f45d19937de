"""The sweep: lingering transactions of this log are aborted and their writers fenced.

A lingering transaction is open and owned by no checkpoint: a worker died, an attempt was denied,
an older run was killed. Until it ends, every read_committed reader of its partitions waits. The
sweep is unconditional, so it runs only when the last decision is settled, and it looks at exactly
its own log, up to its own run.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.committable import Committable
from transactions.decision_log import DecisionLog
from transactions.errors import HiddenCommitError, SparkOnceError
from transactions.events import publish
from transactions.log_entries import Decision
from transactions.sink import Committer, Owner

# A broker that is away for longer fails the run, and the run is restarted. Closing a failed run, or
# ctrl-C, never waits for more than this.
_MOST_SECONDS = 30.0
_SHOWN = 10


def sweep(
    sinks: Mapping[str, Committer],
    owner: Owner,
    deadline: Deadline,
    *,
    spare: frozenset[str] = frozenset(),
) -> list[str]:
    """Abort what lingers in every sink and return the ids.

    Precondition: no task of this run is writing, and the last decision is settled, or its ids are
    spared. If a later transaction can have begun on these ids, the log says `Settled` first: the
    abort removes the broker's proof.
    """
    swept: list[str] = []
    for name, sink in sinks.items():
        ids = [one for one in sink.lingering(owner, deadline) if one not in spare]
        if ids:
            sink.recover_and_abort(ids, deadline)
            swept += ids
            app, count = owner.application_id, len(ids)
            publish("swept", app=app, sink=name, count=count, ids=" ".join(ids))
    return swept


def refuse_hidden(
    sinks: Mapping[str, Committer],
    owner: Owner,
    committed: Sequence[Committable],
    deadline: Deadline,
) -> None:
    """Make sure that readers see what is proven committed, before anything can be aborted.

    A broker can complete a transaction and never mark its end in a partition (Kafka 4.4.0 does so
    for a partition without a leader). An abort under the same producer id would then remove the
    committed records too. A sweep aborts, so this comes first.

    Raises:
        HiddenCommitError: some of it will never be visible by itself.
        BrokerUnavailableError: it could not be learnt before the deadline.
    """
    for name, sink in sinks.items():
        mine = [one for one in committed if one.sink == name]
        where = (
            sink.hidden(mine, Deadline(min(deadline.remaining(), _MOST_SECONDS))) if mine else []
        )
        if not where:
            continue
        app, number = owner.application_id, mine[0].checkpoint_id
        places = "; ".join(where[:_SHOWN]) + ("; ..." if len(where) > _SHOWN else "")
        publish("hidden_commit", app=app, checkpoint=number, partitions=len(where), where=places)
        raise HiddenCommitError(
            f"Checkpoint {number} is committed, but its records are hidden from readers in "
            f"{len(where)} partition(s).",
            where=f"sink {name!r}: {places}",
            cause="the broker has completed the transaction without a marker there: the partition "
            "had no leader at that moment (KAFKA-20734, seen in 4.4.0)",
            option="sparkonce transactions write-markers; then the driver continues",
        )


class Janitor:
    """Sweeps after every batch, beside Spark's own log writes, and is done before the next.

    One thread; `finish` is the barrier: no task may begin a transaction before `finish` returned. A
    task that was cancelled or overtaken can begin one after the sweep of its batch, and an idle
    stream has no other batch. So the sweep is repeated while nothing runs. A stream that was idle
    between two of these sweeps can stay idle for weeks, and brokers forget: its log says `Settled`.

    Args:
        sinks: by name.
        log: of the run; its owner's transactions are swept.
        timeout_s: the timeout of a checkpoint; a sweep takes half a minute at most.
        idle_every_s: seconds between two sweeps of an idle stream; None for none.
        clock: replaced in tests.
    """

    def __init__(
        self,
        sinks: Mapping[str, Committer],
        log: DecisionLog,
        *,
        timeout_s: float,
        idle_every_s: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._sinks = sinks
        self._log = log
        self._owner = log.owner
        self._timeout_s = timeout_s
        self._clock = clock
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sparkonce-janitor")
        self._committed: Sequence[Committable] = ()
        self._looked: Future[Deadline] | None = None
        self._running: Future[list[str]] | None = None
        self._idle = True
        self._again: Future[list[str]] | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._shut = False
        self.swept = 0
        if idle_every_s is not None:
            name, arguments = "sparkonce-idle-sweep", (idle_every_s,)
            threading.Thread(target=self._watch, args=arguments, name=name, daemon=True).start()

    def start(self, decided: Decision | None = None) -> None:
        """Begin a sweep; the batch before is settled and the next has not begun.

        Args:
            decided: the batch before, all of it committed; readers must see it first.
        """
        self._committed = () if decided is None else decided.committables
        self._looked = self._executor.submit(self._look, self._committed)
        self._running = self._executor.submit(self._sweep, self._looked)
        with self._lock:
            self._idle = True

    def await_visible(self) -> None:
        """Wait until readers see what was given to `start`; the sweep may still be under way.

        If tasks run on, none begins again under the same producer ids before this returned.

        Raises:
            HiddenCommitError, BrokerUnavailableError: see `refuse_hidden`.
        """
        if self._looked is not None:
            self._looked.result()

    def finish(self) -> None:
        """Wait for the sweep, and raise what it raised; no other begins before `start`.

        Raises:
            SparkOnceError: see `sweep`; or an idle stream could not be settled.
        """
        with self._lock:
            self._idle = False
            again, self._again = self._again, None
        running, self._running = self._running, None
        for sweeping in (running, again):
            if sweeping is not None:
                self.swept += len(sweeping.result())

    def close(self, *, wait: bool = True) -> None:
        """Stop the threads.

        Args:
            wait: for a sweep under way.
        """
        self._closed.set()
        with self._lock:  # the watch submits under this lock
            self._shut = True
        self._executor.shutdown(wait=wait)

    def _look(self, committed: Sequence[Committable]) -> Deadline:
        """Check that readers see what is committed; return the deadline of the next sweep."""
        deadline = Deadline(min(self._timeout_s, _MOST_SECONDS), self._clock)
        refuse_hidden(self._sinks, self._owner, committed, deadline)
        return deadline

    def _sweep(self, looked: Future[Deadline]) -> list[str]:
        deadline = looked.result()
        self._log.prepare_next()
        return sweep(self._sinks, self._owner, deadline)

    def _sweep_idle(self, last: Future[list[str]] | None, *, settles: bool) -> list[str]:
        """Settle an idle stream, and sweep again.

        Args:
            last: the sweep behind the last batch. It is over: there is one thread.
            settles: nothing came since the idle sweep before; the batch is visible if `last` went
                well.
        """
        if _found_hidden(last):
            return []  # it was found after the watch had asked for this sweep
        went_well = last is not None and last.exception() is None
        if settles and went_well:
            self._log.settle()  # raises: if its entry is in doubt, this run appends nothing more
        try:
            # A broker that was away may not have said yet whether readers see the last batch.
            return sweep(self._sinks, self._owner, self._look(() if went_well else self._committed))
        except SparkOnceError as error:  # the next batch is swept again
            self._tell(error)
            return []

    def _tell(self, error: BaseException) -> None:
        app = self._owner.application_id
        publish("retried", app=app, step="idle sweep", cause=str(error))

    def _watch(self, every_s: float) -> None:
        before: Future[list[str]] | None = None
        while not self._closed.wait(every_s):
            with self._lock:
                last = self._running
                if self._shut or not self._idle or _found_hidden(last):
                    continue
                again = self._again = self._executor.submit(
                    self._sweep_idle, last, settles=last is before
                )
                before = last
            if error := again.exception():  # waits for it; the next `finish` raises it
                self._tell(error)


def _found_hidden(sweeping: Future[list[str]] | None) -> bool:
    """Return whether an abort could remove committed records; the next `finish` raises it."""
    if sweeping is None or not sweeping.done():
        return False
    return isinstance(sweeping.exception(), HiddenCommitError)
