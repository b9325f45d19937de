"""`sparkonce run` as a user starts it: a real process, a real broker, an independent reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from connectors.cli.run import command
from tests.auditor import checkers
from tests.auditor.reader import Follower, read_committed, read_uncommitted
from tests.integration.job_process import PATIENCE_S, running
from tests.tiers import long, sampled

PARTITIONS = 2
UPPER = "SELECT key, upper(CAST(value AS STRING)) AS value FROM source"
MODULE = """
from pyspark.sql import functions as f

def split(records):
    words = records.select("key", f.upper(f.col("value").cast("string")).alias("value"))
    return {"%s": words, "%s": records.select("key", "value")}
"""

ARROW = """
import pyarrow as pa
import pyarrow.compute as pc

def shout(records):
    values = pc.utf8_upper(records["value"].cast(pa.string()))
    return pa.RecordBatch.from_arrays([records["key"], values], names=["key", "value"])
"""


@dataclass
class Job:
    folder: Path
    bootstrap: str
    application_id: str
    source: str
    output: str
    second: str
    produced: int = 0

    def write(
        self,
        *,
        transform: str = f"sql = '{UPPER}'",
        app: str = "",
        source: str = "",
        sinks: tuple[str, ...] = (),
        bootstrap: str = "${BROKERS}",
    ) -> Path:
        text = f"""
[app]
id = "{self.application_id}"
checkpoint = "state"
master = "local[2]"
{app}
[source]
kafka.bootstrap.servers = "{bootstrap}"
subscribe = "{self.source}"
startingOffsets = "earliest"
{source}
[transform]
{transform}
"""
        for name in sinks or (self.output,):
            text += f'[[sink]]\nkafka.bootstrap.servers = "{bootstrap}"\ntopic = "{name}"\n'
        path = self.folder / "job.toml"
        path.write_text(text)
        return path

    def produce(self, records: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(self.produced, self.produced + records):
            producer.produce(
                self.source, f"record {number}".encode(), partition=number % PARTITIONS
            )
        assert producer.flush(30) == 0
        self.produced += records

    def audit(self, topic: str, *, upper: bool = True) -> None:
        """Assert that every record of the input is in the topic exactly once."""
        inputs = read_committed(self.bootstrap, self.source)
        assert len(inputs) == self.produced
        history = checkers.history_of(
            inputs,
            read_committed(self.bootstrap, topic),
            identify=lambda record: record.value.upper() if upper else record.value,
            identify_output=lambda record: record.value,
        )
        checkers.assert_exactly_once(history)

    def assert_nothing_moved(self) -> None:
        assert read_uncommitted(self.bootstrap, self.output) == []
        assert read_uncommitted(self.bootstrap, self.second) == []


@pytest.fixture
def job(tmp_path: Path, bootstrap: str, application_id: str, topic: Callable[..., str]) -> Job:
    names = [topic(PARTITIONS, name) for name in ("in", "out", "second")]
    return Job(tmp_path, bootstrap, application_id, *names)


@long
def test_sigterm_and_ctrl_c_stop_between_two_checkpoints(job: Job):
    job.produce(500)
    path = job.write()
    with Follower(job.bootstrap, job.output) as reader:
        with running(path, BROKERS=job.bootstrap) as process:
            reader.until(lambda seen: len(seen) == 500, timeout=PATIENCE_S)
            process.until(lambda text: "checkpoint 0: 500 records" in text)
            assert process.terminate() == 0, process.text
        assert "SIGTERM: stopping" in process.text
        assert "stopped; 500 records in 1 checkpoints" in process.text
        assert "ERROR" not in process.text

        job.produce(500)
        with running(path, BROKERS=job.bootstrap) as process:
            reader.until(lambda seen: len(seen) == 1000, timeout=PATIENCE_S)
            assert process.ctrl_c() == 0, process.text
        assert "ctrl-C: stopping" in process.text
    job.audit(job.output)


@pytest.mark.long
def test_ctrl_c_in_the_middle_of_the_work(job: Job):
    """The signal reaches the workers too; whatever it cut off is done by the next start."""
    job.produce(2000)
    path = job.write(source="maxOffsetsPerTrigger = 50")
    with running(path, BROKERS=job.bootstrap) as process:
        process.until(lambda text: "checkpoint 0" in text)
        assert process.ctrl_c() == 0, process.text
    path = job.write(app='trigger = "available-now"')
    with running(path, BROKERS=job.bootstrap) as process:
        assert process.wait() == 0, process.text
    job.audit(job.output)


@pytest.mark.parametrize("how", sampled(["terminate", "ctrl_c"], "terminate"))
def test_a_stop_while_the_session_starts(job: Job, how: str):
    job.produce(10)
    with running(job.write(), BROKERS=job.bootstrap) as process:
        process.until(lambda text: "starting" in text)
        assert getattr(process, how)() == 0, process.text
    assert "stopped; 0 records" in process.text
    job.assert_nothing_moved()


@long
def test_sigkill_between_decision_and_commit_then_run_again(job: Job):
    """Two sinks from one function: all or none, also over the kill."""
    (job.folder / "my_functions.py").write_text(MODULE % (job.output, job.second))
    path = job.write(
        transform='function = "my_functions:split"',
        source="maxOffsetsPerTrigger = 300",
        app='trigger = "available-now"',
        sinks=(job.output, job.second),
    )
    job.produce(1000)
    crash = {
        "SPARKONCE_CRASH_AT": "decision_durable@1",
        "SPARKONCE_CRASH_ONCE": str(job.folder / "crashed"),
    }
    with running(path, BROKERS=job.bootstrap, **crash) as process:
        assert process.wait() == -9, process.text
    with running(path, BROKERS=job.bootstrap) as process:
        assert process.wait() == 0, process.text
    assert "transactions of an earlier run committed" in process.text
    job.audit(job.output)
    job.audit(job.second, upper=False)


@pytest.mark.long
def test_a_continuous_job_stops_in_order_and_goes_on_after_a_kill(job: Job):
    (job.folder / "my_arrow.py").write_text(ARROW)
    path = job.write(transform='arrow = "my_arrow:shout"', app='mode = "continuous"')
    crash = {"SPARKONCE_CRASH_AT": "decision_durable"}
    job.produce(500)
    with Follower(job.bootstrap, job.output) as reader:
        with running(path, BROKERS=job.bootstrap) as process:
            reader.until(lambda seen: len(seen) == 500, timeout=PATIENCE_S)
            job.produce(500)
            reader.until(lambda seen: len(seen) == 1000, timeout=PATIENCE_S)
            assert process.terminate() == 0, process.text
        assert "SIGTERM: stopping" in process.text
        assert "stopped; 1,000 records in" in process.text
        assert "ERROR" not in process.text

        job.produce(500)
        with running(path, BROKERS=job.bootstrap, **crash) as process:
            assert process.wait() == -9, process.text
        with running(path, BROKERS=job.bootstrap) as process:
            reader.until(lambda seen: len(seen) == 1500, timeout=PATIENCE_S)
            assert process.ctrl_c() == 0, process.text
        assert "transactions of an earlier run committed" in process.text
    job.audit(job.output)


@long  # `test_bad_input.py` has the error, `unit/test_run_command.py` the exit code
def test_a_missing_topic_is_bad_configuration(job: Job):
    job.produce(10)
    job.source, source = "no-such-topic", job.source
    with running(job.write(), BROKERS=job.bootstrap) as process:
        assert process.wait() == 2, process.text
    assert "MissingTopicError" in process.text
    for part in ("where:", "cause:", "look at:"):
        assert part in process.text
    job.source = source
    job.assert_nothing_moved()
    assert not list((job.folder / "state").rglob("decisions/*"))


@pytest.mark.long
def test_an_unreachable_broker_fails_in_bounded_time(job: Job):
    with running(job.write(), BROKERS="127.0.0.1:1") as process:
        process.until(lambda text: "starting" in text)
        assert process.wait() == 1, process.text
    assert "BrokerUnavailableError" in process.text
    assert "look at: kafka.bootstrap.servers=127.0.0.1:1" in process.text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"app": 'triger = "1 second"'}, "did you mean 'trigger'"),
        ({"source": 'kafka.auto.offset.reset = "latest"'}, "auto.offset.reset"),
        ({"transform": 'function = "no_such_module:f"'}, "cannot be imported"),
        ({"transform": 'arrow = "no_such_module:f"'}, "cannot be imported"),
        ({"app": 'mode = "continuous"'}, "shuffle or state"),
        ({"bootstrap": "${NOT_SET_ANYWHERE}"}, "is not set"),
        (  # finding B14
            {"source": 'kafka.security.protocol = "SASL_SSL"\nkafka.sasl.mechanism = "GSSAPI"'},
            "--no-binary confluent-kafka",
        ),
    ],
)
def test_bad_configuration_is_seen_without_spark(job: Job, change: dict[str, str], says: str):
    for options in ([], ["--check"]):
        result = CliRunner(env={"BROKERS": job.bootstrap}).invoke(
            command, [str(job.write(**change)), *options]
        )
        assert result.exit_code == 2, result.output
        assert says in result.output
        assert "look at:" in result.output


def test_check_names_the_pipeline(job: Job):
    result = CliRunner(env={"BROKERS": "nobody:1"}).invoke(command, [str(job.write()), "--check"])
    assert result.exit_code == 0, result.output
    assert f"{job.application_id}: {job.source} -> {job.output}" in result.output
