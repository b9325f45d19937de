"""The driver's requests to transaction coordinators: commit, describe, list, fence, read.

librdkafka can neither finish a transaction of another process nor describe one, so these are raw
requests. Three rules of the protocol live here:

- **EndTxn at version 4 at most.** Version 5 bumps the epoch and fences the live producer for good.
- **A lost answer is unknown**, and its id is `doubtful`: a late EndTxn could still arrive, so the
  caller retires the id. Only a NONE at the first try leaves the id usable.
- **The driver never sends EndTxn(abort).** It aborts by InitProducerId. The epoch bump of that
  request also stops every late request of the dead writer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Mapping as Map
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, TypeVar

from connectors.wire import broker_answers, wire_requests
from connectors.wire.backoff import Backoff
from connectors.wire.broker_answers import Answer, Meaning, Request
from connectors.wire.broker_setting import read_setting
from connectors.wire.direct_questions import DirectQuestions
from connectors.wire.empty_transaction import EmptyTransaction
from connectors.wire.group_reader import read_groups
from connectors.wire.id_list import list_ids
from connectors.wire.transaction_descriptions import describe
from connectors.wire.wire_client import (
    GROUP,
    TRANSACTION,
    AnswerLostError,
    NotSentError,
    WireClient,
)
from connectors.wire.wire_requests import (
    OPEN_STATES,
    OpenTransaction,
    ProducerIdentity,
    TransactionDescription,
)
from connectors.wire.wire_rounds import until_all
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import BrokerUnavailableError, OutcomeUnknownError

#: We keep the last answers of this many ids, and always those of the whole last call.
MOST_KEPT: Final = 1024

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class _Ending:
    outcome: Outcome
    doubtful: bool
    answer: Answer | str


class CoordinatorWire:
    """Raw requests to the coordinators of one cluster; for the driver, from any thread.

    It connects at the first request. Every method returns or raises before its deadline, give or
    take one scheduling of the I/O thread.

    Args:
        kafka: the user's client settings, without the ``kafka.`` prefix.
        request_timeout_s: longest wait for one answer.

    Attributes:
        doubtful: ids whose EndTxn met a timeout, a lost connection, a retry or a refusal, the
            newest `MOST_KEPT`. These ids and their producers must never be used again: the
            caller of `commit` records them before it calls `commit` again.
    """

    def __init__(
        self,
        kafka: Map[str, str],
        *,
        request_timeout_s: float = 10.0,
    ) -> None:
        self._doubtful: dict[str, None] = {}
        self._answers: dict[str, str] = {}
        self._lock = threading.Lock()
        self._wire = WireClient(kafka, request_timeout_s)
        self._direct = DirectQuestions(self._wire)

    def __enter__(self) -> CoordinatorWire:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def doubtful(self) -> frozenset[str]:
        """See above."""
        with self._lock:
            return frozenset(self._doubtful)

    def close(self) -> None:
        """Close all connections; safe to call twice."""
        self._direct.close()
        self._wire.close()

    # -- commit -----------------------------------------------------------------------------

    def commit(self, committables: Sequence[Committable], deadline: Deadline) -> dict[str, Outcome]:
        """Commit every transaction, all at the same time.

        Call it only when the decision is durable. Safe to repeat: a transaction that is already
        committed answers COMMITTED again (version 4 cannot distinguish the two).

        - COMMITTED: the decision is in the coordinator's log; readers see it within milliseconds.
        - UNKNOWN and in `doubtful`: the answer was lost, or it proves nothing (`answer_of` says
          which). Describe the id; never count it as a success or as a loss.
        - UNKNOWN and not in `doubtful`: nothing was ever sent (no broker or no
          coordinator until the deadline).

        Never ABORTED: an error code is no proof.

        Raises:
            AuthenticationError: a right is missing; all other transactions were ended if possible.
        """
        by_id = {one.transactional_id: one for one in committables}
        assert len(by_id) == len(committables), "two transactions on one id cannot be pending"
        if not by_id:
            return {}
        endings: dict[str, _Ending] = {}
        try:
            self._wire.run(self._commit_all, committables, endings, deadline, deadline=deadline)
        except BrokerUnavailableError as error:  # there was no connection: nothing was sent
            for name in by_id:
                endings.setdefault(
                    name, _Ending(Outcome.UNKNOWN, doubtful=False, answer=str(error))
                )
        finally:
            # Also for Ctrl-C: the I/O thread sends on, so an id without an ending is in doubt.
            with self._lock:
                answers = {name: str(end.answer) for name, end in endings.items()}
                doubtful = [name for name in by_id if name not in endings or endings[name].doubtful]
                self._answers = _newest(self._answers, answers)
                self._doubtful = _newest(self._doubtful, dict.fromkeys(doubtful))
        for name, ending in endings.items():
            if isinstance(ending.answer, Answer):
                self._wire.raise_permanent(Request.END_TXN, ending.answer, name)
        return {name: endings[name].outcome for name in by_id}

    def answer_of(self, transactional_id: str) -> str:
        """Return the last answer to an EndTxn for the id as a sentence; "" if there is none."""
        with self._lock:
            return self._answers.get(transactional_id, "")

    async def _commit_all(
        self, committables: Sequence[Committable], endings: dict[str, _Ending], deadline: Deadline
    ) -> None:
        # First one batched look-up: otherwise hundreds of single ones would follow. If it fails,
        # each commit looks up its own coordinator.
        with contextlib.suppress(NotSentError, AnswerLostError):
            ids = [one.transactional_id for one in committables]
            await self._wire.coordinators(TRANSACTION, ids, deadline)

        async def commit_and_note(one: Committable) -> None:
            endings[one.transactional_id] = await self._commit_one(one, deadline)

        await self._wire.together(commit_and_note, committables)

    async def _commit_one(self, one: Committable, deadline: Deadline) -> _Ending:
        backoff = Backoff(self._wire, deadline)
        answered: Answer | None = None
        while True:
            reason = "no coordinator was found"
            try:
                answer = await self._end_once(one, deadline)
            except NotSentError as error:
                reason = str(error)
            except AnswerLostError as error:
                return _Ending(Outcome.UNKNOWN, doubtful=True, answer=f"answer lost: {error}")
            else:
                if answer.meaning is Meaning.DONE:
                    return _Ending(Outcome.COMMITTED, doubtful=answered is not None, answer=answer)
                if answer.meaning not in (Meaning.RETRY, Meaning.REFIND):
                    return _Ending(Outcome.UNKNOWN, doubtful=True, answer=answer)
                answered = answer
            if not await backoff.again():
                return _Ending(
                    Outcome.UNKNOWN, doubtful=answered is not None, answer=answered or reason
                )

    async def _end_once(self, one: Committable, deadline: Deadline) -> Answer:
        name = one.transactional_id
        try:
            node = await self._coordinator(TRANSACTION, name, deadline)
        except AnswerLostError as error:  # from FindCoordinator, which changes nothing
            raise NotSentError(str(error)) from error
        if node is None:
            raise NotSentError("the broker names no coordinator yet")
        try:
            response = await self._wire.send(node, wire_requests.end_txn(one), deadline)
        except (NotSentError, AnswerLostError):
            self._wire.forget(TRANSACTION, [name])
            raise
        answer = broker_answers.read(Request.END_TXN, response.error_code)
        if answer.meaning is Meaning.REFIND:
            self._wire.forget(TRANSACTION, [name])
        return answer

    async def _coordinator(self, kind: int, key: str, deadline: Deadline) -> int | None:
        return (await self._wire.coordinators(kind, [key], deadline)).get(key)

    # -- describe ---------------------------------------------------------------------------

    def describe(
        self, transactional_ids: Sequence[str], deadline: Deadline
    ) -> dict[str, TransactionDescription]:
        """Ask the coordinators for every id: one request per coordinator broker.

        An id that the broker does not know gets an error text; the other ids still get answers.

        Raises:
            BrokerUnavailableError: an id has no answer at the deadline.
            AuthenticationError: a right is missing.
        """
        ids = list(dict.fromkeys(transactional_ids))
        return describe(self._wire, self._direct, ids, deadline) if ids else {}

    # -- list -------------------------------------------------------------------------------

    def list_open(
        self,
        application_id: str,
        log_id: str | None,
        deadline: Deadline,
        states: Sequence[str] = OPEN_STATES,
    ) -> list[OpenTransaction]:
        """List the transactions of an application that hold readers back, sorted by id.

        It asks every broker of fresh metadata. It can miss a coordinator that moves between two
        answers; the next call sees it (the sweeper runs again and again).

        Args:
            application_id: first part of the ids; compared as a whole, never as a prefix.
            log_id: second part, or None for every log of the application.
            deadline: when to give up.
            states: states to list instead; empty for every id that the cluster remembers.

        Raises:
            BrokerUnavailableError: a broker of the cluster did not answer.
            AuthenticationError: a right is missing.
        """
        prefix = f"{application_id}." if log_id is None else f"{application_id}.{log_id}."
        return self._wire.run(list_ids, self._wire, prefix, states, deadline, deadline=deadline)

    @property
    def cluster_id(self) -> str:
        """Return the cluster's own name, the same for all of its servers."""
        return self._wire.cluster_id()

    # -- fence ------------------------------------------------------------------------------

    def fence(
        self,
        transactional_id: str,
        timeout_ms: int,
        deadline: Deadline,
        *,
        held: ProducerIdentity | None = None,
    ) -> ProducerIdentity | None:
        """Abort any open transaction of the id and fence its producer, by InitProducerId.

        Unconditional, so never call it for an id whose decided transaction is not settled. It
        creates an unknown id. It returns when the abort is written to all partitions.

        Returns:
            The id's producer id and epoch now; None if the id no longer has those in `held`.

        Raises:
            BrokerUnavailableError: not confirmed before the deadline; calling again is safe.
            AuthenticationError: a right is missing.
            ConfigurationError: the timeout is above the broker's `transaction.max.timeout.ms`.
        """
        kind = Request.INIT_PRODUCER_ID if held is None else Request.KEEP_PRODUCER_ID

        async def ask(node_and_ids: tuple[int, list[str]]) -> dict[str, ProducerIdentity | None]:
            node, _ = node_and_ids
            request = wire_requests.init_producer_id(transactional_id, timeout_ms, held)
            response = await self._wire.send(node, request, deadline)
            answer = broker_answers.read(kind, response.error_code)
            if answer.meaning is Meaning.DONE:
                return {transactional_id: (response.producer_id, response.producer_epoch)}
            if answer.meaning is Meaning.ASK:
                return {transactional_id: None}
            self._wire.raise_permanent(kind, answer, transactional_id)
            return {}

        done: dict[str, ProducerIdentity | None] = self._wire.run(
            until_all, self._wire, TRANSACTION, [transactional_id], ask, deadline, deadline=deadline
        )
        return done[transactional_id]

    # -- markers and settings ---------------------------------------------------------------

    def read_markers(
        self, group: str, partitions: Sequence[str], deadline: Deadline, *, stable: bool = True
    ) -> dict[str, tuple[int, str]]:
        """Read committed offsets with their metadata, never a value that may still change.

        Args:
            group: the consumer group.
            partitions: ``topic-partition`` names.
            deadline: when to give up; until then it waits for an open transaction on a key.
            stable: False ignores open transactions: a marker that is found is committed all the
                same, but a missing marker proves nothing.

        Returns:
            (offset, metadata) per partition; a partition without a committed offset is missing.

        Raises:
            OutcomeUnknownError: a transaction still holds one of the offsets.
            BrokerUnavailableError: no answer.
            AuthenticationError: a right is missing.
        """
        if not partitions:
            return {}

        unstable = ""

        async def ask(node_and_keys: tuple[int, list[str]]) -> dict[str, Any]:
            nonlocal unstable
            request = wire_requests.offset_fetch(group, partitions, stable=stable)
            response = await self._wire.send(node_and_keys[0], request, deadline)
            for code, name in wire_requests.offset_errors(group, response):
                answer = broker_answers.read(Request.OFFSET_FETCH, code)
                if answer.meaning is not Meaning.DONE:
                    self._wire.raise_permanent(Request.OFFSET_FETCH, answer, name)
                    unstable = f"{name}: {answer}"
                    return {}
            return {group: wire_requests.offsets(response)}

        try:
            done: dict[str, dict[str, tuple[int, str]]] = self._wire.run(
                until_all, self._wire, GROUP, [group], ask, deadline, deadline=deadline
            )
        except BrokerUnavailableError as error:
            if not unstable:
                raise
            raise OutcomeUnknownError(
                "Committed offsets could not be read in a stable state before the deadline.",
                where=f"group {group!r}",
                cause=unstable,
            ) from error
        return done[group]

    def read_groups(
        self, groups: Sequence[str], deadline: Deadline
    ) -> Map[str, Map[str, tuple[int, str]]]:
        """Read all committed offsets of several groups, as `read_markers` with `stable=False`.

        Raises:
            BrokerUnavailableError: no answer.
            AuthenticationError: a right is missing.
        """
        return self._wire.run(read_groups, self._wire, groups, deadline, deadline=deadline)

    def broker_now_ms(
        self, transactional_id: str, group: str, timeout_ms: int, deadline: Deadline
    ) -> int | None:
        """Ask a coordinator for its wall clock: see `empty_transaction`.

        Args:
            transactional_id: an id that nobody else uses; this initialises it.
            group: a group; no offset is written to it.
            timeout_ms: a timeout that the broker allows.
            deadline: when to give up.

        Returns milliseconds since 1970; None if the broker refuses to begin a transaction.

        Raises:
            BrokerUnavailableError: no answer.
            AuthenticationError: a right on the id is missing.
        """
        empty = EmptyTransaction(self._wire, transactional_id, most_ms=timeout_ms)
        begun = self._wire.run(empty.begin_and_abort, group, deadline, deadline=deadline)
        return None if begun.seen is None else begun.seen.start_time_ms

    def broker_setting(self, name: str, deadline: Deadline) -> str:
        """Return one setting of a broker (`DescribeConfigs`), in the broker's own text.

        Raises:
            ConfigurationError: the broker has no such setting.
            BrokerUnavailableError: no answer before the deadline.
            AuthenticationError: DESCRIBE_CONFIGS on the cluster is missing.
        """
        return self._wire.run(read_setting, self._wire, name, deadline, deadline=deadline)


def _newest(kept: dict[str, T], new: dict[str, T]) -> dict[str, T]:
    """Merge both, the new ones last; drop the oldest of the others that do not fit."""
    older = [(name, value) for name, value in kept.items() if name not in new]
    return {**dict(older[max(0, len(older) + len(new) - MOST_KEPT) :]), **new}
