"""The raw requests of the probe, and what their answers say. Every broker has these versions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from kafka.protocol.admin import (
    DescribeAclsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from connectors.doctor.facts import Topic
from connectors.wire import broker_answers
from connectors.wire.broker_answers import Meaning, Request

_TOPIC: Final = 2
_BROKER: Final = 4
_ANY: Final = 1

#: Kafka's numbers of the operations that a right can allow.
_OPERATIONS: Final = {
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    9: "CLUSTER_ACTION",
    10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS",
    12: "IDEMPOTENT_WRITE",
}


def api_versions() -> Any:
    """Return a request for the versions that a broker speaks and its finalized features."""
    return ApiVersionsRequest(
        client_software_name="sparkonce", client_software_version="1", min_version=3
    )


def spoken_version(response: Any) -> str:
    """Return the newest Kafka version whose requests the broker speaks, as far as we know them."""
    versions = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
    number = BrokerVersionData(api_versions=versions).broker_version_str
    return f"Kafka {number} or newer"


def features(response: Any) -> dict[str, int] | None:
    """Return the finalized features with their levels; None when the broker does not know them."""
    if response.finalized_features_epoch < 0:
        return None
    return {row.name: int(row.max_version_level) for row in response.finalized_features or ()}


def metadata(topics: Sequence[str]) -> Any:
    """Return a request for topics and for our rights on them; it creates no topic."""
    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
        min_version=8,
        max_version=10,
    )


def topic(row: Any) -> Topic:
    """Read one topic of a metadata answer."""
    name = str(row.name)
    if row.error_code:
        error = broker_answers.read(Request.METADATA, row.error_code).name
        return Topic(name=name, error=error)
    return Topic(
        name=name,
        replicas=min((len(one.replica_nodes) for one in row.partitions), default=0),
        in_sync=min((len(one.isr_nodes) for one in row.partitions), default=0),
        leaderless=tuple(
            sorted(one.partition_index for one in row.partitions if one.leader_id < 0)
        ),
        operations=operations(row.authorized_operations),
    )


def operations(numbers: Iterable[int]) -> frozenset[str]:
    """Return the names of operations."""
    return frozenset(_OPERATIONS[number] for number in numbers if number in _OPERATIONS)


def broker_configs(node: int, names: Sequence[str]) -> Any:
    """Return a request for settings of one broker."""
    return _configs(_BROKER, [str(node)], names)


def topic_configs(topics: Sequence[str], names: Sequence[str]) -> Any:
    """Return a request for settings of several topics."""
    return _configs(_TOPIC, topics, names)


def _configs(kind: int, resources: Sequence[str], names: Sequence[str]) -> Any:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind, resource_name=resource, configuration_keys=list(names)
            )
            for resource in resources
        ],
        max_version=4,
    )


def config_values(response: Any) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return (resource -> settings, resource -> why it may not be read)."""
    values: dict[str, dict[str, str]] = {}
    refused: dict[str, str] = {}
    for result in response.results:
        answer = broker_answers.read(Request.DESCRIBE_CONFIGS, result.error_code)
        if answer.meaning is Meaning.DONE:
            values[result.resource_name] = {
                config.name: str(config.value)
                for config in result.configs
                if config.value is not None
            }
        else:
            refused[result.resource_name] = str(answer)
    return values, refused


def acls() -> Any:
    """Return a request that only a broker with an authorizer can answer."""
    return DescribeAclsRequest(
        resource_type_filter=_ANY,
        resource_name_filter=None,
        pattern_type_filter=_ANY,
        principal_filter=None,
        host_filter=None,
        operation=_ANY,
        permission_type=_ANY,
        min_version=1,
        max_version=2,
    )


def has_authorizer(response: Any) -> bool | None:
    """Return whether the brokers check rights; None when we may not know that."""
    answer = broker_answers.read(Request.DESCRIBE_ACLS, response.error_code)
    if answer.name == "SECURITY_DISABLED":
        return False
    # Only an authorizer can refuse: its refusal says as much as its answer.
    return True if answer.meaning in (Meaning.DONE, Meaning.AUTHORIZATION) else None


def groups(names: Sequence[str]) -> Any:
    """Return a request for our rights on groups; the groups need not exist."""
    return DescribeGroupsRequest(
        groups=list(names), include_authorized_operations=True, min_version=3, max_version=5
    )


def transactions_of(producer_ids: Iterable[int]) -> Any:
    """Return a request for the transactional ids that have the producer ids, in any state."""
    return ListTransactionsRequest(
        state_filters=[], producer_id_filters=sorted(set(producer_ids)), max_version=0
    )
