"""What a user reads about options is made from the table that parses them."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from connectors import KafkaSink, KafkaSource
from connectors.cli.main import cli
from connectors.options.page import PLACES, page

PAGE = Path(__file__).parents[2] / "docs/options.md"


def test_the_page_is_that_of_the_table():
    told = "python -m connectors.options.page > docs/options.md makes it again"
    assert PAGE.read_text("utf-8") == page(), told


def test_help_names_each_option_of_a_job_file():
    text = CliRunner().invoke(cli, ["run", "--help"]).output
    for heading, _, table in PLACES:
        assert heading.replace("`", "") in text
        for name in table.names:
            assert f"    {name}" in text, name


def test_each_option_says_what_it_does():
    for _, _, table in PLACES:
        for option in table.options:
            assert option.says.endswith("."), option.name
            assert not option.mode or option.instead, option.name


def test_the_case_of_a_name_does_not_matter_on_either_side():
    """Spark compares its options without regard to case, those that pass through as well."""
    servers = {"KAFKA.Bootstrap.Servers": "b:1", "kafka.Security.Protocol": "SSL"}
    source = KafkaSource.from_options({**servers, "SUBSCRIBE": "in"})
    sink = KafkaSink.from_options({**servers, "Topic": "out", "transactiontimeoutms": "1min"})
    assert (source.topics, sink.topic, sink.transaction_timeout_ms) == (("in",), "out", 60_000)
    assert (
        source.client_settings
        == sink.settings
        == {
            "bootstrap.servers": "b:1",
            "security.protocol": "SSL",
        }
    )
