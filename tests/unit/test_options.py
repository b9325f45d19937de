"""Options of the source: Spark's names, and nothing passes that is not understood (P11)."""

from __future__ import annotations

import pickle

import pytest

from connectors.clients.client_settings import librdkafka_settings
from connectors.kafka.source import range_reader
from connectors.kafka.source.range_reader import consumer_settings
from connectors.options import java_settings
from connectors.options.kafka_source import KafkaSource
from transactions.errors import ConfigurationError

MINIMAL = {"kafka.bootstrap.servers": "b:9092", "subscribe": "flights"}


def test_minimal_options_have_sparks_defaults() -> None:
    source = KafkaSource.from_options(MINIMAL)

    assert source == KafkaSource(bootstrap_servers="b:9092", subscribe=("flights",))
    assert source.topics == ("flights",)
    assert source.starting_offsets is None
    assert source.fail_on_data_loss
    assert not source.include_headers
    assert source.isolation_level == "read_committed"


def test_p11_option_names_have_no_case() -> None:
    source = KafkaSource.from_options(
        {
            "KAFKA.Bootstrap.Servers": "b:9092",
            "SUBSCRIBE": " a, b,,a ",
            "startingoffsets": "EARLIEST",
            "MAXOFFSETSPERTRIGGER": "9223372036854775807",
            "failondataloss": "False",
            "IncludeHeaders": "TRUE",
            "kafka.security.protocol": "SSL",
        }
    )

    assert source.topics == ("a", "b")
    assert source.starting_offsets == "earliest"
    assert source.max_offsets_per_trigger == 2**63 - 1
    assert not source.fail_on_data_loss
    assert source.include_headers
    assert source.client_settings == {"bootstrap.servers": "b:9092", "security.protocol": "SSL"}


def test_options_survive_the_way_through_spark_and_pickle() -> None:
    source = KafkaSource(
        bootstrap_servers="b:9092",
        subscribe=["a", "b.c-d"],
        starting_offsets='{"a":{"0":-2},"b.c-d":{"0":5}}',
        starting_offsets_by_timestamp='{"a":{"0":7},"b.c-d":{"0":5}}',
        starting_timestamp=1_700_000_000_000,
        unmatched_timestamp="latest",
        starting_group="old",
        ending_offsets="latest",
        ending_offsets_by_timestamp='{"a":{"0":9},"b.c-d":{"0":9}}',
        ending_timestamp=1_700_000_000_001,
        max_offsets_per_trigger=10,
        min_offsets_per_trigger=5,
        max_trigger_delay_ms=90_000,
        max_records_per_partition=4,
        fail_on_data_loss=False,
        include_headers=True,
        isolation_level="read_uncommitted",
        min_partitions=3,
        poll_timeout_ms=1000,
        client_rack_env="Zone",
        kafka={"client.id": "x"},
    )

    assert KafkaSource.from_options(source.to_options()) == source
    assert pickle.loads(pickle.dumps(source)) == source


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("subscrib", "subscribe"),
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTriger", "maxOffsetsPerTrigger"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
    ],
)
def test_unknown_option_names_the_nearest_known_one(given: str, meant: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        KafkaSource.from_options({**MINIMAL, given: "v"})

    assert f"did you mean {meant!r}?" in raised.value.cause
    assert raised.value.option == f"{given}=v"
    assert raised.value.where


def test_unknown_option_without_a_neighbour_lists_all() -> None:
    with pytest.raises(ConfigurationError, match="no option qqq") as raised:
        KafkaSource.from_options({**MINIMAL, "qqq": "v"})

    assert "startingOffsets" in raised.value.cause


@pytest.mark.parametrize(
    ("changed", "option"),
    [
        ({"kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers="),
        ({"subscribe": " , "}, "subscribe="),
        ({"startingOffsets": "soon"}, "startingOffsets=soon"),
        ({"endingOffsets": "earliest"}, "endingOffsets=earliest"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger=0"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger=many"),
        ({"minPartitions": "-1"}, "minPartitions=-1"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay=soon"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger=9"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss=no"),
        ({"isolationLevel": "snapshot"}, "isolationLevel=snapshot"),
        ({"startingTimestamp": "-1"}, "startingTimestamp=-1"),
        ({"endingTimestamp": "2026-11-25"}, "endingTimestamp=2026-11-25"),
        ({"startingOffsetsByTimestamp": "12"}, "startingOffsetsByTimestamp=12"),
        (
            {"startingOffsetsByTimestampStrategy": "earliest"},
            "startingOffsetsByTimestampStrategy=earliest",
        ),
    ],
)
def test_malformed_values_are_refused_with_their_value(
    changed: dict[str, str], option: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        KafkaSource.from_options({**MINIMAL, **changed})

    assert raised.value.option == option
    assert raised.value.cause


def test_settings_without_effect_are_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_settings, "_told", set())
    pasted = {"kafka.group.id": "g", "kafka.max.block.ms": "1", "GroupIdPrefix": "p"}
    source = KafkaSource.from_options({**MINIMAL, **pasted})
    text = caplog.text
    assert all(name in text for name in ("kafka.group.id", "kafka.max.block.ms", "groupIdPrefix"))
    assert librdkafka_settings(source.client_settings) == {
        "bootstrap.servers": "b:9092",
        "security.protocol": "PLAINTEXT",
    }
    KafkaSource.from_options({**MINIMAL, **pasted})
    assert caplog.text == text


def test_the_clients_isolation_level_is_the_sources() -> None:
    uncommitted = {**MINIMAL, "kafka.isolation.level": "read_uncommitted"}
    assert KafkaSource.from_options(uncommitted).isolation_level == "read_uncommitted"
    twice = {**uncommitted, "isolationLevel": "READ_UNCOMMITTED"}
    assert KafkaSource.from_options(twice).isolation_level == "read_uncommitted"
    again = KafkaSource.from_options(KafkaSource.from_options(uncommitted).to_options())
    assert again.isolation_level == "read_uncommitted"
    for level in ("read_committed", "READ_COMMITTED"):
        with pytest.raises(ConfigurationError, match="isolationLevel=read_committed is given too"):
            KafkaSource.from_options({**uncommitted, "isolationLevel": level})
    with pytest.raises(ConfigurationError, match="isolationLevel=read_uncommitted is given too"):
        KafkaSource(
            bootstrap_servers="b:1",
            subscribe="t",
            isolation_level="read_uncommitted",
            kafka={"isolation.level": "read_committed"},
        )


@pytest.mark.parametrize("given", ['{"t": [2, 0, 2], "a": [1]}', {"a": (1,), "t": [2, 0]}])
def test_partitions_can_be_assigned(given: object) -> None:
    source = KafkaSource(bootstrap_servers="b:1", assign=given)
    assert source.topics == ("a", "t")
    assert source.reads == ("a[1]", "t[0 2]")
    assert source.assigned_names == {"a-1", "t-0", "t-2"}
    assert KafkaSource.from_options(source.to_options()) == source
    assert KafkaSource(bootstrap_servers="b:1", subscribe="a").assigned_names == set()


@pytest.mark.parametrize(
    "given", ["", "t", "{}", '{"t": []}', '{"t": 1}', '{"t": "01"}', '{"t": [-1]}', '{"t": ["0"]}']
)
def test_partitions_that_are_not_partitions_are_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="assign cannot be used") as raised:
        KafkaSource(bootstrap_servers="b:1", assign=given)
    assert raised.value.option == f"assign={given}"


def test_a_pattern_names_topics() -> None:
    source = KafkaSource(bootstrap_servers="b:1", subscribe_pattern="a{1,2}")
    assert (source.topics, source.reads) == ((), ("pattern a{1%2C2}",))
    assert [source.reads_topic(one) for one in ("a", "aa", "aaa", "ba")] == [
        True,
        True,
        False,
        False,
    ]
    assert KafkaSource.from_options(source.to_options()) == source


@pytest.mark.parametrize(
    ("changed", "option"),
    [
        ({"subscribePattern": "a.*"}, "subscribePattern=a.*"),
        ({"subscribe": "", "subscribePattern": ""}, "subscribePattern="),
        ({"subscribe": "", "subscribePattern": "a("}, "subscribePattern=a("),
        ({"subscribe": "", "subscribePattern": "a", "assign": '{"t": [0]}'}, "subscribePattern=a"),
    ],
)
def test_wrong_patterns_are_refused(changed: dict[str, str], option: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        KafkaSource.from_options({**MINIMAL, **changed})
    assert raised.value.option == option


def test_topics_and_partitions_are_not_both_given() -> None:
    with pytest.raises(ConfigurationError, match="subscribe is given too"):
        KafkaSource.from_options({**MINIMAL, "assign": '{"t": [0]}'})


@pytest.mark.parametrize("name", ["endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    value = "1" if name == "endingTimestamp" else '{"flights": {"0": 1}}'
    source = KafkaSource.from_options({**MINIMAL, name: value})
    with pytest.raises(ConfigurationError, match="a stream has no end") as raised:
        source.check_stream()
    assert raised.value.option == f"{name}={value}"


@pytest.mark.parametrize(
    "value", ["earliest", '{"t": {"0": 5, "1": -2}}', '{"t": "earliest", "u": {"0": 5}}']
)
def test_a10_a_read_does_not_end_at_the_earliest_offset(value: str) -> None:
    with pytest.raises(ConfigurationError, match="endingOffsets") as raised:
        KafkaSource.from_options({**MINIMAL, "endingOffsets": value})

    assert raised.value.option == f"endingOffsets={value}"


def test_a10_a_stream_has_no_end() -> None:
    with pytest.raises(ConfigurationError, match="a stream has no end") as raised:
        KafkaSource.from_options({**MINIMAL, "endingOffsets": "latest"}).check_stream()

    assert raised.value.option == "endingOffsets=latest"
    assert "available-now" in raised.value.cause
    KafkaSource.from_options(MINIMAL).check_stream()


@pytest.mark.parametrize("value", ["latest", '{"t": {"0": 5, "1": -1}}'])
def test_a10_a_batch_does_not_begin_at_the_latest_offset(value: str) -> None:
    with pytest.raises(ConfigurationError, match="startingOffsets") as raised:
        KafkaSource.from_options({**MINIMAL, "startingOffsets": value}).check_batch()

    assert raised.value.option == f"startingOffsets={value}"
    for fine in ("earliest", '{"t": {"0": 5, "1": -2}}', "{"):  # the last is refused with its text
        KafkaSource.from_options({**MINIMAL, "startingOffsets": fine}).check_batch()


def test_missing_options_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"kafka\.bootstrap\.servers"):
        KafkaSource.from_options({"subscribe": "t"})
    with pytest.raises(ConfigurationError, match="subscribe"):
        KafkaSource.from_options({"kafka.bootstrap.servers": "b:1"})


def test_two_different_clusters_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="given twice"):
        KafkaSource(bootstrap_servers="a:1", subscribe="t", kafka={"bootstrap.servers": "b:1"})


def test_the_rack_is_that_of_the_process_which_reads(monkeypatch, caplog) -> None:
    source = KafkaSource.from_options(MINIMAL | {"clientrackenv": "Zone"})
    monkeypatch.setenv("Zone", " a-1 ")
    assert consumer_settings(source)["client.rack"] == "a-1"
    assert "client.rack" not in consumer_settings(KafkaSource.from_options(MINIMAL))

    for value in ("", None):
        range_reader.rack_here.cache_clear()
        monkeypatch.setenv("Zone", value) if value is not None else monkeypatch.delenv("Zone")
        caplog.clear()
        for _ in range(2):
            assert "client.rack" not in consumer_settings(source)
        (said,) = caplog.messages
        assert "no Zone (clientRackEnv)" in said


def test_a_rack_that_is_given_twice_is_refused() -> None:
    twice = {"clientRackEnv": "ZONE", "kafka.client.rack": "a-1"}
    with pytest.raises(ConfigurationError, match=r"kafka\.client\.rack is given too"):
        KafkaSource.from_options(MINIMAL | twice)
