"""What a source and a sink ask their clusters before any data moves."""

from __future__ import annotations

import dataclasses

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from connectors.kafka.client_settings import librdkafka_settings, settings_checked
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.kafka.wire.coordinator_wire import CoordinatorWire
from connectors.options import KafkaSource
from connectors.sink_options import KafkaSink
from transactions.clock import Deadline
from transactions.errors import BrokerUnavailableError, ConfigurationError, MissingTopicError


def check_source(source: KafkaSource, deadline: Deadline) -> None:
    """Check that the source's topics exist and may be read.

    Spark plans its first batch in a process of its own, after the query has started: what is wrong
    there would come back as the text of a failed query.

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


def transaction_timeout_ms(
    options: KafkaSink, wire: CoordinatorWire, *, at_least_s: float, deadline: Deadline
) -> int:
    """Return the transaction timeout to use: as much as the broker allows, unless given.

    Args:
        options: the sink.
        wire: a connection to its cluster.
        at_least_s: checkpoint timeout plus restart budget; less would abort decided
            transactions while a driver restarts.
        deadline: for the broker's answer.

    Raises:
        ConfigurationError: the timeout is above the broker's maximum, or too short.
    """
    most = int(wire.broker_setting("transaction.max.timeout.ms", deadline))
    timeout = options.transaction_timeout_ms
    if timeout is None:
        timeout = most
    if timeout > most:
        raise ConfigurationError(
            f"The broker allows transactions of {most} ms at most.",
            where=f"sink {options.name!r}",
            cause="the broker's transaction.max.timeout.ms is lower",
            option=f"transactionTimeoutMs={timeout}",
        )
    if timeout < at_least_s * 1000:
        raise ConfigurationError(
            f"A transaction timeout of {timeout} ms is shorter than a checkpoint and a restart "
            f"may take ({at_least_s:g} s); decided transactions would be aborted.",
            where=f"sink {options.name!r}",
            cause="checkpoint_timeout_s + restart_budget_s is longer than the transaction lives",
            option=f"transactionTimeoutMs={timeout} (the broker allows {most})",
        )
    return timeout


def check_topic(options: KafkaSink, deadline: Deadline) -> None:
    """Check that the sink's topic exists; a producer would create it, or wait for it, silently.

    Raises:
        MissingTopicError: it does not.
        BrokerUnavailableError: no broker answered.
    """
    if options.topic is None:
        return
    settings = librdkafka_settings(options.settings)
    with settings_checked(options.settings, "admin client"):
        admin = AdminClient(settings)
    try:
        topics = admin.list_topics(timeout=max(1.0, deadline.remaining())).topics
    except KafkaException as error:
        raise BrokerUnavailableError(
            "The sink's cluster does not answer.",
            where=f"sink {options.name!r}: {error}",
            cause="the address is wrong, or the brokers are down",
            option=f"kafka.bootstrap.servers={options.bootstrap_servers}",
        ) from error
    if options.topic not in topics:
        raise MissingTopicError(
            f"The sink's topic {options.topic!r} does not exist.",
            where=f"sink {options.name!r} on {options.bootstrap_servers}",
            cause="it was not created, or the name is misspelt",
            option=f"topic={options.topic}",
        )
