"""The driver's end of a stage: its tasks' channels, and what they answered.

Everything here runs on one thread, the checkpoint loop's, except `accept`, which has a thread of
its own while the stage starts. Any sign of trouble (a channel that closed, a task that reports an
error, an answer that does not come) ends the stage: the next run begins at the last decision.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import selectors
import threading
from collections.abc import Callable, Mapping
from multiprocessing import AuthenticationError
from typing import TypeVar

from connectors.continuous.control_channel import (
    Acknowledge,
    Barrier,
    ChannelClosedError,
    Commit,
    Committed,
    ControlChannel,
    Failed,
    Message,
    Moved,
    Ready,
    Register,
    Start,
    accept,
    listen,
    wake,
)
from connectors.continuous.partition_shares import Change
from connectors.records.user_traceback import last_raised
from transactions.clock import Deadline
from transactions.errors import CheckpointTimeoutError, PhaseOneError, SparkOnceError

logger = logging.getLogger(__name__)

MessageT = TypeVar("MessageT", bound=Message)

_LOOK_S = 0.2
#: A task proves who it is and registers in milliseconds.
_PATIENCE_S = 5.0


class RunningStage:
    """The tasks of one stage, from their registration to their end. Lives on the driver.

    Args:
        host: address of this driver that workers can reach.
        parallelism: how many tasks there will be.
        error_in: finds an error of ours in a text, None when there is none.
    """

    def __init__(
        self,
        host: str,
        parallelism: int,
        error_in: Callable[[str], SparkOnceError | None],
    ) -> None:
        self.parallelism = parallelism
        self.name = secrets.token_hex(8)
        self.key = secrets.token_bytes(32)
        self._error_in = error_in
        self._listener = listen(host)
        self._address = self._listener.address
        self._channels: dict[int, ControlChannel] = {}
        # Made once: a stage of 64 tasks would register 64 channels for each of 64 answers.
        self._arrivals = selectors.DefaultSelector()
        self._ids: dict[str, int] = {}
        self._moved: set[int] = set()
        self._failure: BaseException | None = None
        self._closed = False
        self._registered = threading.Condition()
        #: All ids of the stage are known. Before that, a live producer would look like a lingering
        #: one.
        self.is_ready = False

    @property
    def address(self) -> tuple[str, int]:
        """Where the tasks connect to."""
        host, port = self._address
        return str(host), int(port)

    # --- its start ----------------------------------------------------------------------------

    def open(self, start_of: Callable[[int], Start]) -> None:
        """Let tasks register.

        Args:
            start_of: returns where a subtask begins; called when the subtask registers.
        """
        self._start_of = start_of
        threading.Thread(target=self._accept, name="sparkonce-stage", daemon=True).start()

    def await_ready(self, deadline: Deadline) -> None:
        """Wait until every task has made its producers.

        Raises:
            CheckpointTimeoutError: not all came in time.
            SparkOnceError: why a task failed to.
        """
        with self._registered:
            while len(self._channels) < self.parallelism:
                self.check()
                if deadline.expired():
                    raise self._late(f"{len(self._channels)} have registered", deadline)
                self._registered.wait(min(_LOOK_S, deadline.remaining()))
        for subtask, channel in self._channels.items():
            self._arrivals.register(channel.connection, selectors.EVENT_READ, (subtask, channel))
        for subtask, ready in self._each(Ready, set(self._channels), deadline).items():
            self._ids.update(dict.fromkeys(ready.transactional_ids, subtask))
        self.is_ready = True

    def _accept(self) -> None:
        while not self._closed:
            try:
                channel = accept(self._listener, self.key, patience_s=_PATIENCE_S)
            except (OSError, EOFError, AuthenticationError) as error:
                if not self._closed:
                    logger.warning("a stranger on the control channel was refused: %s", error)
                continue
            try:
                self._register(channel)
            except (OSError, PhaseOneError) as error:  # it is gone, or sent an unreadable message
                logger.warning("a task could not register: %s", error)
                channel.close()

    def _register(self, channel: ControlChannel) -> None:
        # The patience stays set: this end reads a message that has begun to come, so silence in its
        # middle would hold up all tasks.
        message = channel.receive()
        with self._registered:
            # A task that comes a second time was started again by Spark: its first attempt may have
            # written, and only a new run sweeps that. A task that comes after the end would go on
            # writing, because nobody is left to stop it.
            if self._closed or not self._is_expected(message):
                channel.close()
                return
            assert isinstance(message, Register)
            channel.send(self._start_of(message.subtask))
            self._channels[message.subtask] = channel
            self._registered.notify_all()

    def _is_expected(self, message: Message) -> bool:
        return (
            isinstance(message, Register)
            and message.stage == self.name
            and message.subtask in range(self.parallelism)
            and message.subtask not in self._channels
        )

    # --- one checkpoint -----------------------------------------------------------------------

    def is_writer(self, transactional_id: str) -> bool:
        """Return whether an id belongs to a task of this stage. From any thread."""
        return transactional_id in self._ids

    @property
    def has_writers(self) -> bool:
        """Return whether its tasks write under ids that they have reported: see `is_writer`."""
        return bool(self._ids)

    def await_moved(self, timeout_s: float) -> bool:
        """Wait until a task has records for the next checkpoint; False if none has in time.

        Raises:
            SparkOnceError: a task failed.
        """
        deadline = Deadline(timeout_s)
        while not self._moved:
            self.check()
            if not self._receive(min(_LOOK_S, deadline.remaining())) and deadline.expired():
                return False
        self.check()
        return True

    def barrier(
        self,
        checkpoint_id: int,
        deadline: Deadline,
        change: Change,
        *,
        last: bool = False,
    ) -> Mapping[int, Acknowledge]:
        """Send the barrier of a checkpoint and return what the tasks acknowledged, by subtask.

        Args:
            checkpoint_id: N.
            deadline: of the checkpoint.
            change: who takes part, and what it changes.
            last: the tasks end after it; all of them take part.

        Raises:
            CheckpointTimeoutError: a task did not acknowledge in time.
            SparkOnceError: a task failed: nothing of this checkpoint will be visible.
        """
        self._moved.clear()
        subtasks = {*self._channels} if last else {*change.readers}
        for subtask in sorted(subtasks):
            barrier = Barrier(
                checkpoint_id=checkpoint_id,
                last=last,
                added=change.added.get(subtask, {}),
                removed=change.removed.get(subtask, ()),
            )
            self._send(subtask, barrier)
        acknowledged = self._each(Acknowledge, subtasks, deadline)
        for subtask, answer in acknowledged.items():
            if answer.checkpoint_id != checkpoint_id:
                raise PhaseOneError(
                    "A task acknowledged the wrong checkpoint.",
                    where=f"subtask {subtask}: {answer.checkpoint_id}, not {checkpoint_id}",
                    cause="a bug in sparkonce",
                )
        return acknowledged

    def commit(self, checkpoint_id: int, subtasks: set[int], deadline: Deadline) -> set[int]:
        """Send the writers of the checkpoint that it is decided; each ends its own transaction.

        Returns:
            The tasks that confirmed. If a task is missing, the stage is over, and none of its tasks
            will begin another transaction on the same id.
        """
        confirmed: set[int] = set()
        try:
            for subtask in subtasks:
                self._send(subtask, Commit(checkpoint_id=checkpoint_id))
            self._each(Committed, subtasks, deadline, confirmed)
        except SparkOnceError as error:
            self.fail(error)
            self.close()
        return confirmed

    # --- its end ------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """Note why the stage is over; the first reason counts. From any thread."""
        self._failure = self._failure or error

    def check(self) -> None:
        """Raise what ended the stage, if anything did."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Close every channel, which ends the tasks; a second call is harmless."""
        with self._registered:
            was_closed, self._closed = self._closed, True
            for channel in self._channels.values():
                channel.close()
        if not was_closed:
            wake(self._listener)
            with contextlib.suppress(OSError):
                self._listener.close()

    # --- messages -----------------------------------------------------------------------------

    def _send(self, subtask: int, message: Message) -> None:
        try:
            self._channels[subtask].send(message)
        except ChannelClosedError as error:
            self._receive(0.0)  # its last message says why
            raise self._gone(subtask) from error

    def _each(
        self,
        kind: type[MessageT],
        subtasks: set[int],
        deadline: Deadline,
        answered: set[int] | None = None,
    ) -> dict[int, MessageT]:
        """Wait for one message of a kind from each of the tasks."""
        answers: dict[int, MessageT] = {}
        while len(answers) < len(subtasks):
            self.check()
            for subtask, message in self._receive(min(_LOOK_S, deadline.remaining())):
                assert isinstance(message, kind), f"{message} where a {kind.__name__} is due"
                answers[subtask] = message
                if answered is not None:
                    answered.add(subtask)
            if len(answers) < len(subtasks) and deadline.expired():
                silent = sorted(subtasks - set(answers))
                raise self._late(f"no {kind.__name__} from {silent}", deadline)
        return answers

    def _receive(self, timeout_s: float) -> list[tuple[int, Message]]:
        """Return what has come; on the way it notes `Moved` and raises `Failed`."""
        if self._closed:  # by another thread: the selector does not report closed channels
            raise PhaseOneError(
                "The stage was closed; nothing of its checkpoint is visible.",
                where=f"{self.parallelism} tasks",
                cause="the driver closed the stage",
            )
        found: list[tuple[int, Message]] = []
        gone: SparkOnceError | None = None
        for key, _ in self._arrivals.select(timeout_s):
            subtask, channel = key.data
            try:
                message = channel.receive()
            except ChannelClosedError as error:
                gone = self._gone(subtask)
                gone.__cause__ = error
                continue
            if isinstance(message, Failed):  # perhaps why the other tasks are gone
                raise self._failed(subtask, message)
            if isinstance(message, Moved):
                self._moved.add(subtask)
            else:
                found.append((subtask, message))
        if gone is not None:
            raise gone
        return found

    def _failed(self, subtask: int, message: Failed) -> SparkOnceError:
        return self._error_in(message.error) or PhaseOneError(
            "A task of the stage failed; nothing of its checkpoint is visible.",
            where=f"subtask {subtask}",
            cause=last_raised(message.error) or message.error.strip().splitlines()[-1],
        )

    def _gone(self, subtask: int) -> SparkOnceError:
        return PhaseOneError(
            "A task of the stage is gone; nothing of its checkpoint is visible.",
            where=f"subtask {subtask}",
            cause="its worker or executor was killed, or the network failed",
        )

    def _late(self, what: str, deadline: Deadline) -> CheckpointTimeoutError:
        return CheckpointTimeoutError(
            f"The tasks of the stage did not answer in time: {what}.",
            where=f"{self.parallelism} tasks",
            cause="too few free slots in Spark, a stalled worker, or a slow broker",
            option=f"checkpoint_timeout; the wait was {deadline.seconds:g} s",
        )
