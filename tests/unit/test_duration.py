"""One grammar of durations, wherever a user writes one."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from connectors.cli.main import cli
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.options.kafka_source import KafkaSource
from connectors.options.trigger import AVAILABLE_NOW, trigger_ms
from transactions.duration import milliseconds_of, seconds_of
from transactions.errors import ConfigurationError
from transactions.restart_strategy import FixedDelay, parse_restart_strategy

SAME = ["90s", "90 s", "90", "90 seconds", "1.5min", "1.5 Minutes", "90000ms", "90000 milliseconds"]


@pytest.mark.parametrize("text", SAME)
def test_all_of_these_are_a_minute_and_a_half(text: str):
    assert seconds_of(text) == 90.0
    assert trigger_ms(text) == 90_000
    strategy = parse_restart_strategy(f"fixed-delay(attempts=1, delay={text})")
    assert strategy == FixedDelay(attempts=1, delay_s=90.0)


def test_hours_and_days():
    assert (seconds_of("1h"), seconds_of("2 days")) == (3600.0, 172_800.0)


@pytest.mark.parametrize("text", ["", "soon", "10 parsecs", "-1s", "1s 5ms", "1,5s", "nan", "1e3"])
def test_what_is_no_duration(text: str):
    with pytest.raises(ValueError, match="is not a duration: 500ms, 10s, 1min, 10 minutes, 1h"):
        seconds_of(text)
    with pytest.raises(ConfigurationError, match="neither a duration nor available-now"):
        trigger_ms(text)


def test_an_option_whose_name_ends_in_ms_means_milliseconds():
    """As Spark and Kafka have them; with a unit it is what the unit says."""
    assert [milliseconds_of(text) for text in ("1500", "1500ms", "1.5s")] == [1500] * 3
    with pytest.raises(ValueError, match="a part of a millisecond"):
        milliseconds_of("0.5ms")
    place = {"kafka.bootstrap.servers": "x:1", "topic": "t"}
    sink = KafkaSink.from_options({**place, "transactionTimeoutMs": "15 minutes"})
    assert sink.transaction_timeout_ms == 900_000
    source = KafkaSource.from_options(
        {"kafka.bootstrap.servers": "x:1", "subscribe": "t", "kafkaConsumer.pollTimeoutMs": "2min"}
    )
    assert source.poll_timeout_ms == 120_000


@pytest.mark.parametrize(
    ("kind", "topic", "option"),
    [
        (KafkaSink, "topic", "transactionTimeoutMs"),
        (KafkaSource, "subscribe", "kafkaConsumer.pollTimeoutMs"),
    ],
)
def test_what_is_none_is_refused_with_its_value(kind: type[KafkaSink], topic: str, option: str):
    with pytest.raises(ConfigurationError, match="500ms, 10s") as refused:
        kind.from_options({"kafka.bootstrap.servers": "x:1", topic: "t", option: "soon"})
    assert f"{option}=soon" in str(refused.value)


def test_available_now_is_no_interval():
    assert trigger_ms(AVAILABLE_NOW) is None


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        ("soon", 2, "is not a duration: 500ms"),
        ("0s", 2, "is not longer than zero"),
        ("1ms", 2, "BrokerUnavailableError"),
    ],
)
def test_on_the_command_line(given: str, code: int, says: str):
    command = ["verify", "--bootstrap", "127.0.0.1:1", "--input", "a", "--output", "b"]
    ended = CliRunner().invoke(cli, [*command, "--timeout", given])
    assert (ended.exit_code, says in ended.output) == (code, True), ended.output
