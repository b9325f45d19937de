"""Asks a cluster for the facts: raw requests, one connection, nothing left behind.

The rights on transactional ids cannot be listed, so the probe tries them: it initialises
`<application>.doctor` as a producer would do it. The coordinator's start time of a transaction of
that id shows the broker's clock. The transaction has no record and no offset, and is aborted at
once. It writes only its abort marker in the group's partition of __consumer_offsets, and log
cleaning removes that. If this process dies in between, the transaction times out after ten seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from connectors.clients.offsets_topic import OFFSETS_TOPIC
from connectors.clients.transactional_id import probe_id
from connectors.doctor import doctor_requests
from connectors.doctor.endless_probe import described, find_endless
from connectors.doctor.facts import (
    STATE_TOPIC,
    ClusterFacts,
    Endless,
    Hanging,
    Topic,
    Wanted,
)
from connectors.doctor.verdicts import MAX_TIMEOUT, RETENTION, STATE_MIN_ISR, STATE_REPLICAS
from connectors.wire import broker_answers, wire_requests
from connectors.wire.broker_answers import Meaning, Request
from connectors.wire.empty_transaction import EmptyTransaction
from connectors.wire.wire_client import (
    GROUP,
    AnswerLostError,
    Backoff,
    NotSentError,
    WireClient,
)
from connectors.wire.wire_rounds import until_all
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import AuthenticationError, BrokerUnavailableError, ConfigurationError

_REQUEST_S: Final = 5.0
_STEP_S: Final = 5.0
#: The timeout that every broker allows; used if a broker hides its maximum.
_LEAST_MOST_MS: Final = 10_000
_SETTINGS: Final = (MAX_TIMEOUT, RETENTION, STATE_REPLICAS, STATE_MIN_ISR)
_MIN_ISR: Final = "min.insync.replicas"

T = TypeVar("T")


def gather(
    kafka: Mapping[str, str], wanted: Wanted, deadline: Deadline, clock: Clock = SYSTEM_CLOCK
) -> ClusterFacts:
    """Read everything that `wanted` needs to be judged. On the driver or in the command.

    Args:
        kafka: client settings without prefix, brokers among them.
        wanted: what the pipeline will want from the cluster.
        deadline: when to give up; single steps give up earlier and say so in `unread`.
        clock: ours, for the difference to the broker's.

    Raises:
        BrokerUnavailableError: no broker answered at all.
        AuthenticationError: the credentials are wrong; missing *rights* are facts.
        ConfigurationError: a client setting is wrong.
    """
    wire = WireClient(kafka, _REQUEST_S)
    try:
        probe = _Probe(wire, wanted, deadline, clock)
        return wire.run(probe.run, kafka.get("bootstrap.servers", ""), deadline=deadline)
    finally:
        wire.close()


class _Probe:
    """One gathering; every method runs on the wire's I/O thread."""

    def __init__(self, wire: WireClient, wanted: Wanted, deadline: Deadline, clock: Clock) -> None:
        self._wire = wire
        self._wanted = wanted
        self._deadline = deadline
        self._clock = clock
        self._unread: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._skew: tuple[float, float] | None = None
        self._most_timeout_ms = _LEAST_MOST_MS

    async def run(self, bootstrap: str) -> ClusterFacts:
        settings = await self._settings()
        self._most_timeout_ms = int(settings.get(MAX_TIMEOUT, _LEAST_MOST_MS))
        brokers, silent, features = await self._brokers()
        if self._wanted.application_id:
            # Before the metadata: the first id ever creates the topic of the transaction log.
            await self._unless("transactional id", self._try_id)
            await self._unless("clock", self._try_transaction)
        group = None
        if self._wanted.application_id:
            group = await self._unless("group", self._group_operations)
        hanging: tuple[Hanging, ...] = ()
        endless: tuple[Endless, ...] = ()
        if self._wanted.strangers:
            hanging = await self._unless("open transactions", self._hanging) or ()
            endless = await self._unless("transaction ends", self._endless) or ()
        skew_ms, skew_error_ms = self._skew or (None, 0.0)
        return ClusterFacts(
            bootstrap=bootstrap,
            brokers=brokers,
            silent=silent,
            settings=settings,
            features=features,
            topics=await self._unless("topics", self._topics) or {},
            authorizer=await self._unless("authorizer", self._authorizer),
            group_operations=group,
            refused=self._refused,
            skew_ms=skew_ms,
            skew_error_ms=skew_error_ms,
            hanging=hanging,
            endless=endless,
            unread=self._unread,
        )

    async def _unless(self, what: str, step: Callable[[], Awaitable[T]]) -> T | None:
        """Run a step; an error that stops it is a fact as well."""
        try:
            return await step()
        except AuthenticationError as error:
            self._refused[what] = error.cause
        except (BrokerUnavailableError, NotSentError, AnswerLostError) as error:
            self._unread[what] = getattr(error, "cause", "") or str(error)
        except ConfigurationError as error:
            self._unread[what] = error.cause or error.what
        return None

    def _step_deadline(self) -> Deadline:
        return Deadline(min(_STEP_S, self._deadline.remaining()), self._clock)

    async def _ask(self, request: Any, node: int | None = None) -> Any:
        """Send a request that may be sent twice, until the step's time is over."""
        deadline = self._step_deadline()
        backoff = Backoff(self._wire, deadline)
        while True:
            try:
                chosen = await self._wire.any_broker() if node is None else node
                return await self._wire.send(chosen, request, deadline)
            except (NotSentError, AnswerLostError):
                if not await backoff.again():
                    raise

    # -- brokers and settings -----------------------------------------------------------------

    async def _settings(self) -> dict[str, str]:
        backoff = Backoff(self._wire, self._deadline)
        while True:
            try:
                node = await self._wire.any_broker()
                answer = await self._ask(doctor_requests.broker_configs(node, _SETTINGS), node)
            except (NotSentError, AnswerLostError) as error:
                if not await backoff.again():
                    raise self._wire.unavailable(str(error)) from error
            else:
                values, refused = doctor_requests.config_values(answer)
                if refused:
                    self._unread["broker settings"] = next(iter(refused.values()))
                return next(iter(values.values()), {})

    async def _brokers(self) -> tuple[dict[int, str], dict[int, str], dict[str, int]]:
        await self._wire.refresh(self._step_deadline())
        versions: dict[int, str] = {}
        silent: dict[int, str] = {}
        levels: list[dict[str, int]] = []

        async def ask(node: int) -> None:
            try:
                response = await self._ask(doctor_requests.api_versions(), node)
            except (NotSentError, AnswerLostError) as error:
                silent[node] = str(error)
            else:
                versions[node] = doctor_requests.spoken_version(response)
                if (known := doctor_requests.features(response)) is not None:
                    levels.append(known)

        await self._wire.together(ask, self._wire.brokers())
        if not levels:
            self._unread["features"] = "no broker gives the finalized levels"
        return versions, silent, {name: one[name] for one in levels for name in one}

    async def _authorizer(self) -> bool | None:
        return doctor_requests.has_authorizer(await self._ask(doctor_requests.acls()))

    # -- topics -------------------------------------------------------------------------------

    async def _topics(self) -> dict[str, Topic]:
        names = [STATE_TOPIC, *self._wanted.inputs, *self._wanted.outputs]
        names = list(dict.fromkeys(names))
        response = await self._ask(doctor_requests.metadata(names))
        found = {row.name: doctor_requests.topic(row) for row in response.topics}
        real = [name for name, one in found.items() if not one.error]
        if not real:
            return found
        answer = await self._ask(doctor_requests.topic_configs(real, [_MIN_ISR]))
        values, _ = doctor_requests.config_values(answer)
        for name, settings in values.items():
            if _MIN_ISR in settings:
                minimum = int(settings[_MIN_ISR])
                found[name] = dataclasses.replace(found[name], min_in_sync=minimum)
        return found

    # -- rights and the clock -----------------------------------------------------------------

    def _empty(self) -> EmptyTransaction:
        name = probe_id(self._wanted.application_id)
        return EmptyTransaction(self._wire, name, most_ms=self._most_timeout_ms, clock=self._clock)

    async def _try_id(self) -> None:
        await self._empty().init(self._step_deadline())
        await self._empty().describe(self._step_deadline())

    async def _try_transaction(self) -> None:
        """Begin an empty transaction, read when the coordinator saw it begin, abort it."""
        if "transactional id" in self._refused or "transactional id" in self._unread:
            self._unread["clock"] = "the transactional id cannot be used"
            return
        app = self._wanted.application_id
        begun = await self._empty().begin_and_abort(app, self._step_deadline())
        if begun.answer.meaning is Meaning.AUTHORIZATION:
            self._refused["group"] = str(begun.answer)
        if begun.seen is None:
            taken = "another process used the same id at the same time: run the doctor again"
            done = begun.answer.meaning is Meaning.DONE
            self._unread["clock"] = taken if done else str(begun.answer)
            return
        if not any(one.startswith(f"{OFFSETS_TOPIC}-") for one in begun.seen.partitions):
            # A broker silently leaves out what the principal may not describe.
            self._refused[OFFSETS_TOPIC] = "DescribeTransactions omits its partitions"
        half = (begun.received_ms - begun.sent_ms) / 2
        self._skew = (begun.seen.start_time_ms - (begun.sent_ms + half), half + 1)

    def _done(self, request: Request, code: int, name: str) -> bool:
        answer = broker_answers.read(request, code)
        self._wire.raise_permanent(request, answer, name)
        return answer.meaning is Meaning.DONE

    async def _group_operations(self) -> frozenset[str]:
        """Return our rights on the application's group that hold for the groups of its markers,
        too.
        """
        groups = [self._wanted.application_id, probe_id(self._wanted.application_id)]

        async def ask(node_and_keys: tuple[int, list[str]]) -> dict[str, frozenset[str]]:
            node, names = node_and_keys
            response = await self._wire.send(node, doctor_requests.groups(names), self._deadline)
            return {
                row.group_id: doctor_requests.operations(row.authorized_operations)
                for row in response.groups
                if self._done(Request.DESCRIBE_GROUPS, row.error_code, row.group_id)
            }

        found = await until_all(self._wire, GROUP, groups, ask, self._step_deadline())
        return frozenset.intersection(*found.values())

    # -- open transactions --------------------------------------------------------------------

    async def _hanging(self) -> tuple[Hanging, ...]:
        found: list[Hanging] = []

        async def ask(node: int) -> None:
            rows = await described(wire_requests.list_transactions(""), self._ask, node)
            now_ms = self._clock.now_ms() + (self._skew[0] if self._skew else 0.0)
            found.extend(
                Hanging(
                    transactional_id=row.transactional_id,
                    state=row.transaction_state,
                    age_ms=int(now_ms - row.transaction_start_time_ms),
                    timeout_ms=row.transaction_timeout_ms,
                )
                for row in rows
                if row.transaction_state in wire_requests.OPEN_STATES
            )

        await self._wire.together(ask, self._wire.brokers())
        return tuple(found)

    async def _endless(self) -> tuple[Endless, ...]:
        found, unread = await find_endless(
            self._wire, self._wanted.outputs, self._ask, self._step_deadline()
        )
        self._unread.update(unread)
        return found
