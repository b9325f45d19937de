"""The checks that a source and a sink make on their clusters before any data moves."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AclOperation

from connectors.clients.client_errors import translate
from connectors.clients.client_log import log_settings
from connectors.clients.client_settings import check_login, librdkafka_settings, settings_checked
from connectors.clients.client_version import check_client_version
from connectors.doctor.facts import Wanted
from connectors.doctor.probe import gather
from connectors.doctor.verdict import Kind, Level
from connectors.doctor.verdicts import judge
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.kafka_source import KafkaSource
from transactions.clock import Deadline
from transactions.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    ConfigurationError,
    MissingTopicError,
    SparkOnceError,
)

logger = logging.getLogger(__name__)

_OUTAGE_PAUSE_S: Final = 0.5
_ERRORS: Final[Mapping[Kind, type[SparkOnceError]]] = {
    Kind.SETTING: ConfigurationError,
    Kind.MISSING: MissingTopicError,
    Kind.RIGHTS: AuthenticationError,
    Kind.OUTAGE: BrokerUnavailableError,
}


def check_source(source: KafkaSource, deadline: Deadline) -> SourcePlanner:
    """Check that the source's topics exist and may be read.

    Spark plans its first batch in a process of its own, after the query has started. An error there
    would come back as the text of a failed query.

    Returns:
        The planner that asked: it is connected, for further questions before the start.

    Raises:
        MissingTopicError: a topic does not exist, and `failOnDataLoss` is set; without it a
            pipeline goes on when a topic was deleted.
        AuthenticationError: the credentials or the rights are refused.
        BrokerUnavailableError: no broker answered.
    """
    patience_ms = max(1000, int(deadline.remaining() * 1000))
    bounded = min(source.poll_timeout_ms, patience_ms)
    planner = SourcePlanner(dataclasses.replace(source, poll_timeout_ms=bounded))
    try:
        planner.latest_offsets()
    except MissingTopicError:
        if source.fail_on_data_loss:
            raise
    closed = []
    with contextlib.suppress(MissingTopicError):  # that was said, or it was deleted just now
        closed = [topic for topic, may in planner.rights().items() if AclOperation.READ not in may]
    if closed:
        refusal = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        raise translate(refusal, ", ".join(closed), source.client_settings)
    return planner


def check_clusters(sinks: Sequence[KafkaSink], wanted: Wanted, deadline: Deadline) -> None:
    """Make the wanted checks of `sparkonce doctor` for every cluster that is written to.

    It refuses what would break the guarantee, or could only wait for ever, and logs the rest as
    warnings. It waits for the end of an outage until the deadline. On the driver, once, before its
    Fence.

    Args:
        sinks: all sinks of the driver; their topics are checked.
        wanted: the application and its budgets.
        deadline: for all of it.

    Raises:
        MissingTopicError: a topic does not exist; a producer would wait for it silently.
        AuthenticationError: a right is missing.
        BrokerUnavailableError: no broker answered, or a topic cannot be written to now.
        ConfigurationError: a setting of the brokers does not allow what is wanted, or the client
            library was never tried.
    """
    if any(sink.is_transactional for sink in sinks):
        check_client_version("the driver")
    for here, mine in by_settings(sinks, wanted):
        settings = here[0].settings
        check_login(settings)
        # A worker would find a misspelt setting too, but only as a task that fails again and again.
        with settings_checked(settings, "producer"):
            Producer({**log_settings(), **librdkafka_settings(settings)})
        _check_cluster(settings, mine, deadline)


def by_settings(
    sinks: Iterable[KafkaSink], wanted: Wanted
) -> Iterator[tuple[list[KafkaSink], Wanted]]:
    """Group the sinks that have the same client settings, and say what each group wants.

    The same brokers can know two sinks by two principals, and each principal has its own rights.

    Args:
        sinks: see above.
        wanted: what is the same for all of them.
    """
    groups: dict[tuple[tuple[str, str], ...], list[KafkaSink]] = {}
    for sink in sinks:
        groups.setdefault(tuple(sorted(sink.settings.items())), []).append(sink)
    for here in groups.values():
        topics = tuple(dict.fromkeys(sink.topic for sink in here if sink.topic))
        in_transactions = {sink.topic for sink in here if sink.is_transactional}
        plain = frozenset(topics) - in_transactions
        mine = dataclasses.replace(wanted, outputs=topics, plain_outputs=plain)
        if not any(sink.is_transactional for sink in here):
            mine = dataclasses.replace(mine, application_id="", transactions=False)
        yield here, mine


def _check_cluster(settings: dict[str, str], wanted: Wanted, deadline: Deadline) -> None:
    while True:
        facts = gather(settings, wanted, deadline)
        verdicts = judge(facts, wanted)
        refused = [one for one in verdicts if one.level is Level.REFUSE]
        passing = all(one.kind is Kind.OUTAGE for one in refused)
        if not refused or not passing or deadline.expired():
            break
        deadline.pause(_OUTAGE_PAUSE_S)
    for one in verdicts:
        if one.level is Level.WARN:
            advice = f"; change: {one.option}" if one.option else ""
            logger.warning("pre-flight: %s: %s: %s%s", one.check, one.found, one.reason, advice)
    if refused:
        worst = min(refused, key=lambda one: one.kind is Kind.OUTAGE)
        raise _ERRORS[worst.kind](
            f"This pipeline cannot use the cluster: {worst.check}: {worst.found}.",
            where=facts.bootstrap,
            cause=worst.reason,
            option=worst.option,
        )
