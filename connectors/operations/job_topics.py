"""What the proof of a job compares: the topics that its job file names, and their cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from connectors.kafka.sink.kafka_sink import kafka_sinks
from connectors.options.client_options import ClientOptions, servers_of
from connectors.options.job_definition import JobDefinition
from connectors.wire.wire_client import WireClient
from transactions.clock import Deadline
from transactions.errors import ConfigurationError
from transactions.sink import Cluster

_ANSWER_S: Final = 20.0


def cluster_id(kafka: Mapping[str, str]) -> str:
    """Ask a cluster for its id; "" if it does not tell it.

    Raises:
        BrokerUnavailableError, AuthenticationError: see `WireClient.connect`.
    """
    wire = WireClient(kafka, _ANSWER_S)
    try:
        wire.connect(Deadline(_ANSWER_S))
        return wire.cluster_id()
    finally:
        wire.close()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobTopics:
    """Both sides of a job.

    Attributes:
        kafka: client settings in Java naming, without the ``kafka.`` prefix.
        inputs: the topics that it reads.
        partitions: the partitions of these that it reads, as ``topic-partition``; none: all.
        outputs: the topics that it writes to; together they hold every input once.
    """

    kafka: Mapping[str, str]
    inputs: tuple[str, ...]
    partitions: frozenset[str]
    outputs: tuple[str, ...]

    @classmethod
    def of(
        cls,
        job: JobDefinition,
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        id_of: Callable[[Mapping[str, str]], str] = cluster_id,
    ) -> JobTopics:
        """Take both sides from a job; topics that are given win over those of the job.

        Args:
            job: see above.
            inputs: topics instead of those that the job reads.
            outputs: topics instead of those that the job writes to.
            id_of: asks a cluster for its id, by its client settings. It is called only if the job
                names other brokers for a sink than for its source.

        Raises:
            ConfigurationError: the job does not say which topics hold its output, it writes to
                another cluster than it reads from, or it reads what its producers aborted.
            BrokerUnavailableError, AuthenticationError: see `cluster_id`.
        """
        if job.source.isolation_level != "read_committed":
            raise _refused(
                job,
                "The output of a job that reads undecided records cannot be proven.",
                "the proof reads committed records only, so the aborted ones that the job wrote "
                "would count as foreign",
                f"isolationLevel={job.source.isolation_level} in [source]",
            )
        if job.source.subscribe_pattern is not None and not inputs:
            raise _refused(
                job,
                "The job does not name the topics that it reads.",
                "a pattern can match other topics now than when they were read",
                f"subscribePattern={job.source.subscribe_pattern}; --input is not given",
            )
        sinks = kafka_sinks(job.targets)
        if outputs:
            sinks = [sink for sink in sinks if sink.topic in outputs or sink.topic is None] or sinks
        elif len(job.sinks) != 1 or not sinks or sinks[0].topic is None:
            raise _refused(
                job,
                "The job does not say which topics hold its output.",
                "the job has several sinks, a sink that is not Kafka, or rows that name a topic",
                "--output is not given",
            )
        read = Cluster(servers_of(job.source.bootstrap_servers))
        others = [one for one in sinks if servers_of(one.bootstrap_servers) != read.servers]
        if others:
            read = dataclasses.replace(read, cluster_id=id_of(job.source.client_settings))
        for sink in others:
            written = Cluster(servers_of(sink.bootstrap_servers), id_of(sink.settings))
            if not read.is_same(written):
                raise _refused(
                    job,
                    "The job writes to another cluster than it reads from.",
                    "the proof reads both sides from one cluster; the cluster ids are "
                    f"{written.cluster_id or 'not known'} and {read.cluster_id or 'not known'}",
                    f"kafka.bootstrap.servers = {sink.bootstrap_servers}; in [source]: "
                    f"{job.source.bootstrap_servers}",
                )
        return cls(
            kafka=ClientOptions(job.source.client_settings),
            inputs=tuple(inputs) or job.source.topics,
            partitions=job.source.assigned_names,
            outputs=tuple(outputs) or tuple(sink.topic for sink in sinks if sink.topic),
        )


def _refused(job: JobDefinition, what: str, cause: str, option: str) -> ConfigurationError:
    return ConfigurationError(what, where=str(job.path), cause=cause, option=option)
