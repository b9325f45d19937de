"""The broker image's entrypoint: KAFKA_* variables become server.properties, as in apache/kafka."""

import os
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "docker" / "broker" / "bin" / "run"


@pytest.fixture
def properties(tmp_path: Path):
    """Run the entrypoint with these variables; return the settings, and the commands it ran."""
    java = tmp_path / "kafka-class"
    java.write_text('#!/usr/bin/env bash\necho "$*" >> "$COMMANDS"\n', "utf-8")
    java.chmod(0o755)

    def run(**variables: str) -> tuple[dict[str, str], list[str]]:
        target, commands = tmp_path / "server.properties", tmp_path / "commands"
        environment = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SPARKONCE_PROPERTIES": str(target),
            "COMMANDS": str(commands),
        }
        subprocess.run(["bash", str(RUN)], env=environment | variables, check=True, timeout=30)
        lines = target.read_text("utf-8").splitlines()
        settings = dict(line.split("=", 1) for line in lines)
        return settings, commands.read_text("utf-8").splitlines()

    return run


def test_underscores_become_dots_underscores_and_hyphens(properties) -> None:
    settings, _ = properties(
        KAFKA_NODE_ID="7",
        KAFKA_LISTENERS="PLAINTEXT://:9092,CONTROLLER://:9093",
        KAFKA_A__B="underscore",
        KAFKA_A___B="hyphen",
    )
    assert settings == {
        "node.id": "7",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "a_b": "underscore",
        "a-b": "hyphen",
    }


def test_options_of_the_jvm_and_the_log_are_no_settings(properties) -> None:
    settings, _ = properties(
        KAFKA_NODE_ID="1",
        KAFKA_HEAP_OPTS="-Xmx1g",
        KAFKA_OPTS="-Dx=y",
        KAFKA_LOG4J_ROOT_LOGLEVEL="warn",
    )
    assert settings == {"node.id": "1"}


def test_a_value_keeps_its_backslash(properties) -> None:
    settings, _ = properties(KAFKA_SASL_RULES=r"RULE:[1:\$1]")
    assert settings["sasl.rules"] == r"RULE:[1:\\$1]"  # a properties file reads \\ as one


def test_a_fixed_set_of_voters_is_formatted_without_standalone(properties) -> None:
    _, commands = properties(
        KAFKA_PROCESS_ROLES="broker,controller",
        KAFKA_CONTROLLER_QUORUM_VOTERS="1@kafka-1:9093",
        CLUSTER_ID="5L6g3nShT-eMCtK--X86sw",
    )
    assert "--standalone" not in commands[0]
    assert "--cluster-id 5L6g3nShT-eMCtK--X86sw" in commands[0]
    assert commands[1].startswith("kafka.Kafka ")


def test_a_lone_controller_is_formatted_standalone(properties) -> None:
    _, commands = properties(KAFKA_PROCESS_ROLES="broker,controller")
    assert commands[0].endswith(" --standalone")
