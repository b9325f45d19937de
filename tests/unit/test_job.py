"""The job file's parser: what is in a file comes out whole, what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors import KafkaSink
from connectors.files import FileSink
from connectors.options.job_definition import JobDefinition
from connectors.options.job_file import load_job, parse_job
from connectors.spark.failures import error_in
from transactions import errors
from transactions.checkpoint_location import CheckpointLocation
from transactions.errors import ConfigurationError
from transactions.log_location import LogLocation
from transactions.restart_strategy import FixedDelay

FOLDER = Path("/jobs")
EXAMPLES = Path(__file__).parents[2] / "examples"

APP = 'id = "flights"\ncheckpoint = "state"\n'
SOURCE = 'kafka.bootstrap.servers = "b:9092"\nsubscribe = "in"\n'
SINK = 'kafka.bootstrap.servers = "b:9092"\ntopic = "out"\n'


def text(*, app: str = "", source: str = "", sink: str = "", more: str = "") -> str:
    return f"[app]\n{APP}{app}\n[source]\n{SOURCE}{source}\n[[sink]]\n{SINK}{sink}\n{more}\n"


def parse(content: str, **environment: str) -> JobDefinition:
    return parse_job(content, FOLDER / "job.toml", environment)


def refused(content: str, **environment: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        parse(content, **environment)
    error = caught.value
    for part in (error.what, error.where, error.cause, error.option):
        assert part, f"a part is missing in: {error}"
    assert str(FOLDER / "job.toml") in error.where
    return error


def test_the_smallest_job():
    job = parse(text())
    assert (job.app_id, job.checkpoint, job.option("trigger")) == ("flights", "/jobs/state", "0s")
    assert (job.master, job.log_level) == (None, None)
    assert job.option("checkpoint_timeout") == 600.0
    assert (job.sql, job.function, dict(job.spark)) == (None, None, {})
    assert str(job.option("restart_strategy")).startswith("exponential-delay(initial=1s")
    assert (job.option("tolerable_failed_checkpoints"), job.driver) == (0, {})
    assert job.source.topics == ("in",)
    assert [one.sink.name for one in job.sinks] == ["out"]


def test_a_whole_job():
    job = parse(
        text(
            app='trigger = "5 seconds"\ncheckpoint_timeout = "10 minutes"\nrestart_budget = 30\n'
            'restart_strategy = "fixed-delay(attempts=3, delay=10s)"\n'
            'tolerable_failed_checkpoints = 2\ntarget_checkpoint = "500 milliseconds"\n'
            'guarantee = "exactly-once"\nmaster = "local[2]"\nlog_level = "warn"',
            source="maxOffsetsPerTrigger = 10\nincludeHeaders = true\n"
            'startingOffsets = "earliest"\n'
            'kafka.security.protocol = "SASL_SSL"\n"kafka.ssl.truststore.location" = "ca.pem"',
            sink='name = "first"\ntransactionTimeoutMs = 60000\nsql = "SELECT 1 AS value"',
            more='[[sink]]\nkafka.bootstrap.servers = "other:1"\nname = "second"\n'
            '[transform]\nsql = "SELECT * FROM source"\n'
            "[spark]\nsql.shuffle.partitions = 4\n'spark.cores.max' = \"2\"",
        )
    )
    assert job.driver == {
        "trigger": "5 seconds",
        "checkpoint_timeout_s": 600.0,
        "restart_budget_s": 30.0,
        "restart_strategy": FixedDelay(attempts=3, delay_s=10.0),
        "tolerable_failed_checkpoints": 2,
        "target_checkpoint_s": 0.5,
    }
    assert (job.master, job.log_level, job.sql) == ("local[2]", "WARN", "SELECT * FROM source")
    assert job.source.max_offsets_per_trigger == 10
    assert job.source.include_headers is True
    assert job.source.kafka["ssl.truststore.location"] == "/jobs/ca.pem"
    first, second = job.sinks
    assert (first.sink.name, first.sql) == ("first", "SELECT 1 AS value")
    assert isinstance(first.sink, KafkaSink)
    assert first.sink.transaction_timeout_ms == 60_000
    assert isinstance(second.sink, KafkaSink)
    assert (second.sink.name, second.sink.topic, second.sql) == ("second", None, None)
    assert dict(job.spark) == {"spark.sql.shuffle.partitions": "4", "spark.cores.max": "2"}


def test_topics_as_a_list():
    several = text().replace('subscribe = "in"', 'subscribe = ["a", "b"]')
    assert parse(several).source.topics == ("a", "b")


def test_environment_variables():
    content = text(source='kafka.client.id = "${WHO}-$${WHO}"')
    assert parse(content, WHO="me").source.kafka["client.id"] == "me-${WHO}"
    missing = refused(content)
    assert "'WHO' is not set" in missing.what
    assert "[source]" in missing.where


@pytest.mark.parametrize("relative", [True, False])
def test_a_secret_is_the_content_of_a_file(tmp_path, relative):
    (tmp_path / "secret").write_text("pass word=\u00e9 \n")
    name = "secret" if relative else tmp_path / "secret"
    value = f'kafka.sasl.password = "${{file:{name}}}"'
    job = parse_job(text(source=value), tmp_path / "job.toml", {})
    assert job.source.kafka["sasl.password"] == "pass word=\u00e9 "
    assert "pass word" not in repr(job)


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_of_a_secret_that_cannot_be_read(tmp_path, content):
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    value = 'kafka.sasl.password = "${file:secret}"'
    with pytest.raises(ConfigurationError) as raised:
        parse_job(text(source=value), tmp_path / "job.toml", {})
    error = raised.value
    assert "'secret' of a value cannot be read" in error.what
    assert "[source]" in error.where
    assert error.option == "kafka.sasl.password=[hidden]"


@pytest.mark.parametrize("name", ["ssl.truststore.location", "https.ca.location"])
def test_a_file_of_a_login_is_relative_to_the_job_file(name):
    job = parse(text(source=f'kafka.{name} = "ca.pem"'))
    assert Path(job.source.kafka[name]).is_absolute()


def test_an_empty_file_of_a_login_stays_empty():
    """Not the folder of the job file: an empty one is refused by its name."""
    job = parse(text(source='kafka.ssl.truststore.location = ""'))
    assert job.source.kafka["ssl.truststore.location"] == ""


def test_absolute_checkpoint_and_url():
    for given in ("/elsewhere/state", "file:///elsewhere/state"):
        assert parse(text().replace('"state"', f'"{given}"')).checkpoint == given


@pytest.mark.parametrize(
    "address",
    ["dbfs:/a/b", "file:/data/x", "s3:/b/x", "hdfs://name/x", " dbfs:/x", "s3_us://b/x", "://b/x"],
)
def test_an_address_is_not_a_folder_beside_the_job_file(address):
    """Whoever opens it takes or refuses it; a folder ``dbfs:`` would be silent."""
    assert parse(text().replace('"state"', f'"{address}"')).checkpoint == address
    log = parse(text(more=f'[decision_log]\naddress = "{address}"')).decision_log
    assert log == LogLocation(address)
    files = f'[[sink]]\nkind = "files"\npath = "{address}"\n'
    assert f"path={address}" in refused(text(more=files)).option


def test_hdfs_is_read_with_the_settings_of_hadoop_also_without_a_session():
    spark = "[spark]\nhadoop.dfs.client.use.datanode.hostname = true\nhadoop.cloneConf = true\n"
    log = '[decision_log]\naddress = "hdfs://name/log"\nretry_s = 5\n'
    content = text(more=log + spark).replace('"state"', '"hdfs://name/x"')
    job = parse(content)
    assert job.location.options == {"dfs.client.use.datanode.hostname": "true"}
    assert job.decision_log is not None
    assert job.decision_log.options == {"dfs.client.use.datanode.hostname": "true", "retry_s": "5"}
    assert parse(text(more=spark)).location.options == {}


@pytest.mark.parametrize(
    "options",
    [
        'store.endpoint = "http://s3:9"\nstore.secret_access_key = "${SECRET}"',
        '"store.endpoint" = "http://s3:9"\n"Store.Secret_Access_Key" = "${SECRET}"',
        'store = { endpoint = "http://s3:9", secret_access_key = "${SECRET}" }',
    ],
)
def test_options_of_the_store_of_a_checkpoint(options):
    content = text(app=f'mode = "continuous"\n{options}').replace('"state"', '"s3://b/x"')
    job = parse(content, SECRET="hidden")
    assert job.location == CheckpointLocation(
        "s3://b/x", {"endpoint": "http://s3:9", "secret_access_key": "hidden"}
    )
    assert "hidden" not in repr(job)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ('store.region = "hidden"', "no options of a store"),
        ('store = "hidden"', "There is no key 'store' in [app]."),
        ('stores.region = "hidden"', "There is no key 'stores' in [app]."),
    ],
)
def test_options_of_a_store_that_nothing_would_read_are_refused(options, says):
    assert says in refused(text(app=options)).what


def test_a_relative_path_may_have_a_colon():
    assert parse(text().replace('"state"', '"a:b/c"')).checkpoint == "/jobs/a:b/c"


@pytest.mark.parametrize("value", ["", " ", "${EMPTY}"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (text().replace('"state"', '"VALUE"'), "[app] needs 'checkpoint'."),
        (text(more='[decision_log]\naddress = "VALUE"'), "[decision_log] needs an address."),
        (text(more='[[sink]]\nkind = "files"\npath = "VALUE"'), "A file sink needs a folder."),
    ],
)
def test_an_empty_path_is_not_the_folder_of_the_job_file(content, says, value):
    assert refused(content.replace("VALUE", value), EMPTY="").what == says


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (text(app='idd = "x"'), "did you mean 'id'"),
        (text(app="check_point_timeout = 1"), "did you mean 'checkpoint_timeout'"),
        (text(source='startingOffset = "earliest"'), "did you mean 'startingOffsets'"),
        (text(source="group.id = 1"), "group.id"),
        (text(sink='topik = "x"'), "did you mean 'topic'"),
        (text(sink='sqll = "x"'), "did you mean 'sql'"),
        (text(more="[transform]\nsqql = '1'"), "did you mean 'sql'"),
        (text(more="[tranform]\nsql = '1'"), "did you mean 'transform'"),
        (text(more="[zzz]\n"), "known: app, source"),
    ],
)
def test_unknown_keys_name_the_nearest(content, says):
    assert says in str(refused(content))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[app\n", "not valid TOML"),
        ("id = 1\n", "no table 'id'"),
        (text().replace('id = "flights"', ""), "needs 'id'"),
        (text().replace('"flights"', '"my.app"'), "only letters, digits"),
        (text().replace('checkpoint = "state"', ""), "needs 'checkpoint'"),
        (text().replace('"state"', '"~/state"'), "begins with ~"),
        (text() + '[decision_log]\naddress = "~/log"\n', "begins with ~"),
        (text().replace('subscribe = "in"', ""), "no topic is named"),
        (text().replace("[[sink]]", "[zink]"), "no table 'zink'"),
        (text().replace("[[sink]]", "[sink]"), "needs a sink"),
        (text().replace("[source]", "[[source]]"), "one source"),
        (text(app='trigger = "often"'), "neither a duration"),
        (text(app='guarantee = "maybe"'), "exactly-once"),
        (text(app='log_level = "loud"'), "log level"),
        (text(app="checkpoint_timeout = 0"), "not a duration"),
        (text(app='checkpoint_timeout = "soon"'), "not a duration"),
        (text(app="restart_budget = -1"), "not a duration"),
        (text(app='metrics_port = "9_108"'), "not a whole number"),
        (text(app="metrics_port = 65536"), "a whole number from 0 to 65535"),
        (text(app='tolerable_failed_checkpoints = "+1"'), "not a whole number"),
        (text(app='restart_strategy = "fixed-dely"'), "did you mean 'fixed-delay'"),
        (text(app='restart_strategy = "fixed-delay(delay=soon)"'), "not a duration"),
        (text(app="restart_strategy = 3"), "cannot be read"),
        (text(app="tolerable_failed_checkpoints = -1"), "0 or more"),
        (text(app="tolerable_failed_checkpoints = 1.5"), "not a whole number"),
        (text(app="master = 2026-01-01"), "type date"),
        (text(source='maxOffsetsPerTrigger = "many"'), "not a whole number"),
        (text(source="maxOffsetsPerTrigger = 1.5"), "not a whole number"),
        (text(source="startingOffsets = [1, 2]"), "type list"),
        (text(source="includeHeaders = 3"), "neither true nor false"),
        (text(source="'kafka.bootstrap.servers' = 'c'"), "given twice"),
        (text(sink="transactionTimeoutMs = 10"), "below a second"),
        (text(sink='sql = " "'), "is empty"),
        (text(more=f"[[sink]]\n{SINK}"), "same name"),
        (text(more="[transform]\nsql = ''"), "is empty"),
        (text(more="[transform]\nsql = 'a'\nfunction = 'b:c'"), "given twice"),
        (text(more="[transform]\nfunction = 'b.c'"), "module:name"),
        (text(more="[transform]\narrow = 'a'"), "module:name"),
        (text(more="[transform]\narrow = 'a:b'\nsql = 'c'"), "given twice"),
        (text(more="[transform]\nsql = 'a'\ncolumns = 'value'"), "chooses its columns itself"),
        (text(source='endingOffsets = "latest"'), "a stream has no end"),
        (text(more="[[transform]]"), "must be a table"),
        (text(app='mode = "continous"'), "did you mean 'continuous'"),
        (text(app='target_latency = "20 milliseconds"'), "option of the continuous mode"),
        (text(app="parallelism = 2"), "option of the continuous mode"),
        (text(app="native = true"), "option of the continuous mode"),
    ],
)
def test_wrong_values_are_refused(content, says):
    assert says in str(refused(content))


CONTINUOUS = 'mode = "continuous"\n'


def test_a_continuous_job():
    job = parse(
        text(
            app=f'{CONTINUOUS}target_latency = "50 milliseconds"\nmost_interval = 2\n'
            'parallelism = 4\ncheckpoint_timeout = "1 minute"',
            more='[transform]\narrow = "my.flights:clean"',
        )
    )
    assert (job.mode, job.arrow) == ("continuous", "my.flights:clean")
    assert job.option("checkpoint_timeout") == 60
    assert job.driver == {
        "checkpoint_timeout_s": 60.0,
        "target_latency_s": 0.05,
        "most_interval_s": 2.0,
        "parallelism": 4,
    }
    fixed = parse(text(app=f"{CONTINUOUS}barrier_interval = 0.5\nnative = false"))
    assert dict(fixed.driver) == {"barrier_interval_s": 0.5, "native": False}
    assert fixed.arrow is None
    assert fixed.option("checkpoint_timeout") == 60
    assert parse(text(app=CONTINUOUS + "metrics_port = 0")).driver == {"metrics_port": 0}
    assert parse(text(app="metrics_port = 65535")).driver == {"metrics_port": 65535}


def test_an_arrow_function_runs_in_both_modes():
    arrow = "[transform]\narrow = 'a:b'"
    batches, continuous = parse(text(more=arrow)), parse(text(app=CONTINUOUS, more=arrow))
    assert (batches.mode, batches.arrow) == ("micro-batch", "a:b")
    assert (continuous.mode, continuous.arrow) == ("continuous", "a:b")


@pytest.mark.parametrize(
    ("app", "rest", "says"),
    [
        ('trigger = "1 second"', {}, "no batches that a trigger could start"),
        ("tolerable_failed_checkpoints = 1", {}, "restart_strategy"),
        ("target_checkpoint = 1", {}, "target_latency"),
        ("barrier_interval = 1\ntarget_latency = 1", {}, "fixed and adaptive"),
        ('barrier_interval = "soon"', {}, "not a duration"),
        ("parallelism = 0", {}, "a whole number of 1 or more"),
        ("native = 2", {}, "neither true nor false"),
        ("", {"source": "maxOffsetsPerTrigger = 10"}, "maxOffsetsPerTrigger"),
        ("", {"source": "minPartitions = 10"}, "minPartitions"),
        ("", {"more": "[transform]\nsql = 'SELECT 1'"}, "shuffle or state"),
        ("", {"more": "[transform]\nfunction = 'a:b'"}, "shuffle or state"),
        ("", {"sink": "sql = 'SELECT 1'"}, "cannot have a query"),
        ("", {"more": f"[[sink]]\n{SINK}name = 'second'"}, "one sink"),
    ],
)
def test_what_the_continuous_mode_cannot_do_is_refused(app, rest, says):
    assert says in str(refused(text(app=CONTINUOUS + app, **rest)))


def test_a_continuous_job_writes_files():
    files = 'kind = "files"\npath = "out"\n'
    job = parse(text(app=CONTINUOUS).replace(SINK, files))
    (definition,) = job.sinks
    assert definition.sink == FileSink(path=str(FOLDER / "out"))
    two = refused(text(app=CONTINUOUS, sink='name = "first"', more=f"[[sink]]\n{files}"))
    assert "sinks: first, out" in str(two)


def test_a_secret_is_never_shown():
    error = refused(text(source='sasl.password = "hunter2"'))
    assert "hunter2" not in str(error)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_job(tmp_path / "no.toml", {})


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "BOM"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_a_file_of_an_editor_that_writes_its_own_way(tmp_path, mark, end):
    path = tmp_path / "job.toml"
    path.write_bytes(mark + text().encode().replace(b"\n", end))
    assert load_job(path, {}).app_id == "flights"


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (text(app="trigger = soon"), "quote text values"),
        (text(app="trigger = 1 second"), "quote text values"),
        (text(app='master = "a"\nmaster = "b"'), "once"),
        (text(more="[app]"), "once"),
        (text(more="[sink]"), "[[sink]]"),
        (text(more="[spark]\na = {b = 1, b = 2}"), "once"),
        (text(app="trigger"), "sparkonce run job.toml --check"),
        (text(app='trigger = "1s'), "sparkonce run job.toml --check"),
    ],
)
def test_what_is_not_toml_has_a_hint_that_helps(content, hint):
    error = refused(content)
    assert "not valid TOML" in error.what
    assert hint in error.option
    assert ("quote" in error.option) == ("quote" in hint)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_the_examples_are_valid(path):
    places = {"BROKERS": "localhost:9092", "DATABASE": "postgresql://localhost/words"}
    job = load_job(path, places)
    assert job.sinks


def test_an_error_is_found_in_a_traceback():
    first = errors.MissingTopicError("gone", where="t-0", cause="deleted", option="subscribe=t")
    second = errors.DataLossError("lost", where="t-1")
    text = f"Traceback:\ntransactions.errors.MissingTopicError: {first}\n\nThe above ...\n"
    assert str(error_in(text)) == str(first)
    found = error_in(f"{text}transactions.errors.DataLossError: {second}\n  at org.apache...")
    assert type(found) is errors.DataLossError
    assert str(found) == str(second)
    assert error_in("transactions.errors.NoSuchError: x") is None
    assert error_in("java.lang.Exception") is None


def test_columns_of_an_arrow_function_or_of_a_copy():
    assert parse(text()).columns is None
    for transform in ("", "arrow = 'a:b'\n"):
        job = parse(text(more=f"[transform]\n{transform}columns = 'key, value'"))
        assert (job.columns, job.arrow) == (("key", "value"), "a:b" if transform else None)
