"""The words of the journeys: a stranger, who has the pages, a command line, and a busy topic.

Nothing here imports the product but the broker of `sparkonce kafka`: a pipeline is the command
`sparkonce`, or a script made of the pages' own snippets, in a process group of its own. What came
out of it is read by the auditor, which shares nothing with the product.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from connectors.clients.topic_leaders import has_leaders
from connectors.testing.auditor.reader import (
    Follower,
    Record,
    assert_no_open_transaction,
    read_committed,
)
from connectors.testing.brokers import Broker
from tests.integration.brokers import shared_broker
from tests.pages import block, replaced
from tests.waiting import until

ROOT = Path(__file__).parents[2]
#: The pages' pipeline: in micro-batches, and the same in continuous mode.
README = block("README.md", "driver.run()")
GETTING_STARTED = block("docs/getting_started.md", "arrow_pipeline(")
SPARKONCE = str(Path(sys.executable).with_name("sparkonce"))
#: Generous: two cores are shared with the broker, and a JVM starts in each run.
PATIENCE_S = 150.0
PARTITIONS = 2

JOB = """\
[app]
id = "{app}"
checkpoint = "checkpoint"
{more_of_app}
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
{reads}
{more_of_source}
[[sink]]
"kafka.bootstrap.servers" = "{bootstrap}"
topic = "{output}"
{more_of_sink}
"""
#: The page's `my_module:clean`.
CLEAN = """\
def clean(records):
    return records.select(["key", "value"])
"""
#: What `writer.py` writes.
VALUE = re.compile(r"(?P<mark>\D*)(?P<partition>\d+)-(?P<number>\d+)")
MICRO_BATCH, CONTINUOUS = "", 'mode = "continuous"'
MODES = pytest.mark.parametrize(
    "mode", [MICRO_BATCH, CONTINUOUS], ids=["micro-batch", "continuous"]
)


@dataclass
class Process:
    """One process that a stranger has started in a terminal, and all that it says on stderr.

    What a program of spark-submit says is on stdout, which is heard only where it is asked for.
    """

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def until_it_says(self, pattern: str) -> None:
        with self._news:
            self._news.wait_for(
                lambda: re.search(pattern, self.text) or self.process.poll() is not None, PATIENCE_S
            )
        assert re.search(pattern, self.text), f"exit {self.process.poll()}\n{self.text}"

    def ends(self) -> int:
        """Wait until it has ended by itself; return its exit code."""
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"still running after {PATIENCE_S:g} s\n{self.text}") from late
        self._reader.join(PATIENCE_S)
        return code

    def ctrl_c(self) -> int:
        """Do what a terminal does: SIGINT to every process of the group, JVM and workers too."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.ends()

    def sigterm(self) -> int:
        self.process.terminate()
        return self.ends()

    def sigterm_to_all(self) -> int:
        """Do what systemd does by default: SIGTERM to every process that the pipeline consists of.

        One after the other, the first one last: JVM and workers hear of the stop before it does.
        """
        for pid in sorted(processes_of_session(self.process.pid), reverse=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return self.ends()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Its machine sleeps for a moment: of what happens meanwhile it sees the end only."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)

    def kill_all(self) -> None:
        """The machine's power is gone for all of them at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def listen(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        output = self.process.stderr or self.process.stdout
        assert output is not None
        for line in output:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


def processes_of_session(leader: int) -> list[int]:
    """Return all processes of a session, whatever their group: a daemon makes one of its own."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


@contextlib.contextmanager
def started(
    *command: str, folder: Path, environment: Mapping[str, str], with_stdout: bool = False
) -> Iterator[Process]:
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE if with_stdout else subprocess.DEVNULL,
        stderr=subprocess.STDOUT if with_stdout else subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **environment},
        start_new_session=True,
        cwd=folder,
    )
    told = Process(process)
    told.listen()
    try:
        yield told
    finally:
        told.kill_all()


@dataclass
class Stranger:
    """One stranger: a folder, a busy topic, an empty one, and an application id."""

    bootstrap: str
    folder: Path
    topic: str
    output: str
    app: str

    # --- what is there before they come -------------------------------------------------------

    @contextlib.contextmanager
    def busy_topic(self, mark: str = "", *, begin_with: int = 0) -> Iterator[None]:
        """The topic is being written all the time, and has records already.

        Args:
            mark: begins each value, to tell a topic from another one of its name.
            begin_with: so many records in each partition at once, before anything else.
        """
        command = [sys.executable, str(Path(__file__).with_name("writer.py")), self.bootstrap]
        writer = subprocess.Popen([*command, self.topic, mark, str(begin_with)])
        try:
            at_least = max(200, PARTITIONS * begin_with)
            self.until_written(lambda seen: len(seen) > at_least)
            yield
        finally:
            writer.terminate()
            assert writer.wait(PATIENCE_S) == 0, "the writer has failed"

    def until_written(self, enough: Callable[[list[Record]], bool]) -> None:
        """Wait until a reader of the busy topic has seen enough of it."""
        with Follower(self.bootstrap, self.topic) as reader:
            reader.until(enough, timeout=PATIENCE_S)

    def add_a_partition(self) -> int:
        """The busy topic gets one more, as a person gives it; wait until it has records."""
        number = len(self.input_ends())
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_partitions([NewPartitions(self.topic, number + 1)])[self.topic].result(30)
        until(lambda: number in self.input_ends(), PATIENCE_S, pause_s=0.1)
        self.until_written(lambda seen: sum(one.partition == number for one in seen) > 100)
        return number

    def delete_topic(self) -> None:
        """The topic that the pipeline reads is gone."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([self.topic])[self.topic].result(30)

    def create_topic(self) -> None:
        """There is a topic of that name again, which is another one."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        until(lambda: _is_created(admin, self.topic), PATIENCE_S, pause_s=0.1)
        until(lambda: has_leaders(admin, self.topic), PATIENCE_S, pause_s=0.1)

    # --- what they do -------------------------------------------------------------------------

    def job(
        self,
        mode: str = MICRO_BATCH,
        *,
        reads: str = "",
        app: str = "",
        source: str = "",
        sink: str = "",
    ) -> Path:
        """Write a job file with default options, and what is said here.

        Args:
            mode: a line of [app].
            reads: the line that names the topics; by default all of the busy one is read.
            app: more lines of [app].
            source: more lines of [source].
            sink: more lines of [[sink]].
        """
        path = self.folder / "job.toml"
        path.write_text(
            JOB.format(
                app=self.app,
                bootstrap=self.bootstrap,
                reads=reads or f'subscribe = "{self.topic}"',
                output=self.output,
                more_of_app=f"{mode}\n{app}",
                more_of_source=source,
                more_of_sink=sink,
            )
        )
        return path

    def script(self, mode: str = MICRO_BATCH) -> Path:
        """Write the pages' Python, with this broker, these topics and this folder in it."""
        text = README
        if mode == CONTINUOUS:
            (self.folder / "my_module.py").write_text(CLEAN)
            text = text.partition("driver.write(")[0] + GETTING_STARTED
        here = {
            "localhost:9092": self.bootstrap,
            '"flights-clean"': f'"{self.output}"',
            'subscribe="flights"': f'subscribe="{self.topic}"',
            'app_id="flights': f'app_id="{self.app}',
            '"/data/flights': f'"{self.folder}/checkpoint',
        }
        path = self.folder / "flights.py"
        path.write_text(replaced(text, here))
        return path

    def runs(
        self, path: Path, *options: str, **environment: str
    ) -> contextlib.AbstractContextManager[Process]:
        """Start a job file, or a script; all of it is gone when the block ends."""
        command = (SPARKONCE, "run") if path.suffix == ".toml" else (sys.executable,)
        return started(*command, str(path), *options, folder=path.parent, environment=environment)

    def verifies(self, *options: str) -> tuple[int, str]:
        """Let the command compare both topics; return its exit code and what it says."""
        topics = ("--bootstrap", self.bootstrap, "--input", self.topic, "--output", self.output)
        return _verdict(*topics, *options)

    def verifies_job(self, job: Path) -> tuple[int, str]:
        """Let the command take all that it compares from the job file."""
        return _verdict("--job", str(job))

    # --- what they see ------------------------------------------------------------------------

    def follows_output(self) -> Follower:
        return Follower(self.bootstrap, self.output)

    def input_ends(self) -> dict[int, int]:
        """Return the end of each partition of the busy topic, now."""
        return assert_no_open_transaction(self.bootstrap, self.topic)

    def reads_output(self) -> list[Record]:
        return read_committed(self.bootstrap, self.output)

    def more_comes_out(self, reader: Follower, process: Process, *, records: int = 100) -> None:
        """Wait until a read_committed reader has seen so many more records than now."""
        seen = len(reader.records)
        give_up = time.monotonic() + PATIENCE_S
        while len(reader.records) < seen + records:
            reader.check()
            ended = process.process.poll()
            assert ended is None, f"the pipeline has ended: exit {ended}\n{process.text}"
            assert time.monotonic() < give_up, f"nothing comes out\n{process.text}"
            time.sleep(0.02)

    def comes_to(
        self, ends: Mapping[int, int], reader: Follower, process: Process, mark: str = ""
    ) -> None:
        """Wait until a read_committed reader has seen what was written before these ends."""
        came = self.comes_to_or_ends(ends, reader, process, mark)
        code = process.process.poll()
        assert came, f"the pipeline has ended: exit {code}\n{process.text}"

    def comes_to_or_ends(
        self, ends: Mapping[int, int], reader: Follower, process: Process, mark: str = ""
    ) -> bool:
        """Wait for the same; return False as soon as the pipeline has ended without it."""
        missing = {f"{mark}{partition}-{end - 1}".encode() for partition, end in ends.items()}
        looked = 0
        give_up = time.monotonic() + PATIENCE_S
        while missing:
            reader.check()
            now = len(reader.records)
            missing -= {one.value for one in reader.records[looked:now] if one.value is not None}
            looked = now
            if process.process.poll() is not None:
                return False
            assert time.monotonic() < give_up, f"{missing} did not come out\n{process.text}"
            time.sleep(0.02)
        return True

    def comes_out_for(self, seconds: float, reader: Follower, process: Process) -> None:
        """Watch so long that records come out, again and again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.more_comes_out(reader, process)

    def assert_each_record_came_once(
        self, begins: Mapping[int, range] | None = None, mark: str = ""
    ) -> None:
        """Assert that each partition came through from one record on, each record once.

        Args:
            begins: where each partition's first record may lie; at 0 where nothing is said.
            mark: of the topic that is meant; see `busy_topic`.
        """
        numbers = self.numbers_in_output(mark)
        assert numbers, "nothing came out"
        for partition, came in numbers.items():
            first = min(came)
            assert sorted(came) == list(range(first, first + len(came))), (
                f"partition {partition}: {_what_is_wrong(came)}"
            )
            allowed = (begins or {}).get(partition, range(1))
            assert first in allowed, f"partition {partition} begins with record {first}"

    def numbers_in_output(self, mark: str = "") -> dict[int, list[int]]:
        """Return which records of each partition a reader of committed records sees."""
        numbers: dict[int, list[int]] = {}
        for record in self.reads_output():
            assert record.value is not None
            told = VALUE.fullmatch(record.value.decode())
            assert told, record
            if told["mark"] == mark:
                numbers.setdefault(int(told["partition"]), []).append(int(told["number"]))
        return numbers


def _verdict(*options: str) -> tuple[int, str]:
    ended = subprocess.run(
        (SPARKONCE, "verify", *options),
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return ended.returncode, ended.stdout + ended.stderr


def _is_created(admin: AdminClient, topic: str) -> bool:
    """Create a topic; not yet, while another one of its name is being deleted."""
    try:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def _what_is_wrong(came: list[int]) -> str:
    twice = sorted(one for one, times in Counter(came).items() if times > 1)
    lost = sorted(set(range(min(came), max(came))).difference(came))
    return f"{len(twice)} twice {twice[:5]}, {len(lost)} lost {lost[:5]}"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Broker:
    """The broker of all journeys that do it no harm."""
    return shared_broker("embedded", tmp_path_factory, pytestconfig)


@pytest.fixture
def stranger(tmp_path: Path, broker: Broker) -> Stranger:
    """Somebody who has never seen this project, with two topics on a broker of theirs."""
    return stranger_on(broker.bootstrap_servers, broker.create_topic, tmp_path)


def stranger_on(bootstrap: str, create_topic: object, folder: Path) -> Stranger:
    unique = uuid.uuid4().hex[:8]
    made = Stranger(bootstrap, folder, f"in-{unique}", f"out-{unique}", f"app-{unique}")
    assert callable(create_topic)
    for topic in (made.topic, made.output):
        create_topic(topic, PARTITIONS)
    return made
