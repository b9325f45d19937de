"""A query or a job of the user's own, each way in, where more goes wrong than one death.

X6, X7, X16: the network between the script and the broker loses, delays and repeats requests. X9: a
run dies while it recovers or heals what the run before has left. X10: the checkpoint is restored
from a backup. X13: another number of cores. X14: Spark runs a task again. X15: two scripts run on
one checkpoint. X16: the broker dies. And the JVM dies, alone.

Seen from outside: a plain Spark script with default settings, and an independent read_committed
reader that does not go through the proxy.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.auditor.reader import Follower, read_committed, read_uncommitted
from tests.chaos.kafka_proxy import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TRANSACTION_REQUESTS,
    TXN_OFFSET_COMMIT,
    Action,
    Rule,
)
from tests.chaos.proxied_cluster import ProxiedCluster
from tests.integration.query_script import (
    ENDLESS,
    FILE_SOURCE,
    FILES,
    JOB,
    PER_FILE,
    RATE_ITSELF,
    RATE_SOURCE,
    THREE_BATCHES,
    TO_THE_END,
    WORKER_POINTS,
    Script,
    text_files,
)
from tests.integration.test_examples import started
from tests.shared_broker import assert_no_open_transaction
from tests.tiers import long
from tests.waiting import until
from transactions.crash_points import HEALING_POINTS

pytestmark = [long, pytest.mark.timeout(600)]

ALL = list(range(FILES * PER_FILE))
DRIVER, WORKER = "kafka-python", "rdkafka"  # how their client ids begin
#: The ways in. The function's batch is committed in the script's own process, which a crash kills.
WORD, FUNCTION, WRITE = "writeStream", "foreachBatch", "write"
QUERIES = pytest.mark.parametrize("way", [WORD, FUNCTION])
WAYS = pytest.mark.parametrize("way", [WORD, FUNCTION, WRITE])
KILLED = {WORD: 1, FUNCTION: -signal.SIGKILL, WRITE: 1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProxiedCluster]:
    with ProxiedCluster() as one:
        yield one


@pytest.fixture
def script(cluster: ProxiedCluster, tmp_path: Path) -> Iterator[Callable[..., Script]]:
    """Make the script of a way in; it has 60 lines to write, 15 in a batch."""
    made: list[Script] = []

    def make(way: str, changes: dict[str, str] | None = None) -> Script:
        unique = uuid.uuid4().hex[:8]
        out, app, proxied = f"out-{unique}", f"app-{unique}", cluster.proxied_servers
        cluster.create_topic(out, 2)
        if changes is None:
            changes = {"examples/*.py": str(text_files(tmp_path / "in"))}
        if way == FUNCTION:
            own = {'topic="lines"': f'topic="{out}"', 'app_id="lines"': f'app_id="{app}"'}
            one = Script("own_query.py", proxied, out, tmp_path, own | changes)
        else:
            own = {'"topic", "lines"': f'"topic", "{out}"'}
            one = Script("one_word.py", proxied, out, tmp_path, own | changes)
        if way == WRITE:
            one.path = tmp_path / "job.py"
            one.path.write_text(JOB.format(proxied, out, tmp_path / "checkpoint", app))
        one.bootstrap = cluster.bootstrap_servers
        made.append(one)
        return one

    yield make
    cluster.proxy.clear()
    for one in made:
        assert_no_open_transaction(one.bootstrap, one.ours.name)


def until_done(script: Script, starts: int = 5) -> None:
    """Start the script until it ends well, as its user does."""
    said = ""
    for _ in range(starts):
        code, said = script.run()
        if code == 0:
            return
    raise AssertionError(f"it has failed {starts} times\n{said}")


#: What becomes of the first request of a kind. HOLD_BACK: the connection of its client is closed,
#: and the broker gets the request three seconds later, in the middle of a later batch.
FAULTS = {
    "commit_answer_closed": (DRIVER, END_TXN, Action.CLOSE_AFTER),
    "commit_answer_lost": (DRIVER, END_TXN, Action.DROP_RESPONSE),
    "commit_request_lost": (DRIVER, END_TXN, Action.DROP_REQUEST),
    "commit_late": (DRIVER, END_TXN, Action.HOLD_BACK),
    "commit_twice": (DRIVER, END_TXN, Action.REPEAT_REQUEST),
    "resync_late": (WORKER, END_TXN, Action.HOLD_BACK),
    "init_closed": (WORKER, INIT_PRODUCER_ID, Action.CLOSE_AFTER),
    "init_late": (WORKER, INIT_PRODUCER_ID, Action.HOLD_BACK),
    "partitions_late": (WORKER, ADD_PARTITIONS_TO_TXN, Action.HOLD_BACK),
    "group_late": (WORKER, ADD_OFFSETS_TO_TXN, Action.HOLD_BACK),
    "marker_closed": (WORKER, TXN_OFFSET_COMMIT, Action.CLOSE_AFTER),
    "marker_late": (WORKER, TXN_OFFSET_COMMIT, Action.HOLD_BACK),
}


#: The one word meets them all. The other ways share its code: of each kind of trouble one.
FAULTS_OF = [(WORD, fault) for fault in FAULTS] + [
    (way, fault)
    for way in (FUNCTION, WRITE)
    for fault in ("commit_answer_lost", "commit_late", "marker_late")
]


@pytest.mark.parametrize(("way", "fault"), FAULTS_OF)
def test_x6_x7_x16_a_request_that_is_lost_or_late(script, cluster, way: str, fault: str):
    one = script(way)
    client, request, action = FAULTS[fault]
    met = cluster.proxy.add(Rule(request, action, client=client, seconds=3.0))
    until_done(one)
    assert met.hits == 1
    if action is not Action.DROP_REQUEST:
        met.wait_for_answers()
    assert one.values() == ALL


@pytest.mark.parametrize(("way", "seed"), [(WORD, 1), (WORD, 2), (FUNCTION, 3), (WRITE, 4)])
def test_x7_a_network_that_holds_requests_back_all_the_time(script, cluster, way: str, seed: int):
    """One of ten comes half a second to three seconds late, behind a closed connection."""
    one = script(way)
    storm = Rule(
        TRANSACTION_REQUESTS,
        Action.HOLD_BACK,
        times=None,
        seconds=0.5,
        spread=2.5,
        share=0.1,
        chance=random.Random(seed),
    )
    cluster.proxy.add(storm)
    until_done(one, starts=12)
    storm.wait_for_answers(storm.hits)
    assert one.values() == ALL


def killed(script: Script, way: str, *points: str) -> None:
    """Start the script once per point; each run dies there."""
    for point in points:
        code, said = script.run(point)
        assert code == KILLED[way], (point, said)


@WAYS
def test_kills_in_recovery(script, way: str):
    """The last run finds what three dead runs have left."""
    one = script(way)
    number = 0 if way == WRITE else 1
    killed(one, way, f"decision_durable@{number}", "recovery_fenced", "recovery_settled")
    until_done(one, starts=1)
    assert one.values() == ALL


#: Behind the third, the next run has nothing more to heal.
HEALING = [(WORD, HEALING_POINTS[:3]), (WORD, HEALING_POINTS[3:]), (FUNCTION, ("heal_durable",))]


@pytest.mark.parametrize(("way", "points"), HEALING)
def test_kills_while_lost_records_are_written_again(script, way: str, points: tuple[str, ...]):
    """What was decided is aborted by the broker; the runs that write it again die."""
    one = script(way)
    killed(one, way, "decision_durable@1")
    one.abort_decided()
    killed(one, way, *points)
    until_done(one, starts=1)
    assert one.values() == ALL


def rewrite(script: Script, old: str, new: str) -> None:
    """Change a word of the script."""
    text = script.path.read_text()
    assert text.count(old) == 1, old
    script.path.write_text(text.replace(old, new))


@pytest.mark.parametrize("point", WORKER_POINTS)
@pytest.mark.parametrize("way", [WORD, WRITE])
def test_x14_spark_runs_a_task_again_whose_worker_has_died(script, way: str, point: str):
    """The query or job goes on, and nobody waits for the transaction of the dead attempt."""
    one = script(way)
    rewrite(one, "local[2]", "local[2,4]")  # a task has four attempts
    died = one.folder / "died"
    code, said = one.run(point, SPARKONCE_CRASH_ONCE=str(died))
    assert code == 0, said
    assert died.exists()
    found = read_committed(one.bootstrap, one.topic, timeout=5.0)
    assert sorted(int(record.value or b"") for record in found) == ALL
    if point != "records_queued":  # there they are still on their way
        assert len(read_uncommitted(one.bootstrap, one.topic)) > len(ALL)


def stopped_in(folder: Path) -> list[psutil.Process]:
    """Return the processes of a test that stand still."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_STOPPED and process.cwd() == str(folder):
                found.append(process)
    return found


def await_a_sleeper(script: Script) -> psutil.Process:
    """Wait until a process of the script stands still, and return it."""
    return until(lambda: stopped_in(script.folder), 120, script.said, pause_s=0.1)[0]


@WAYS
def test_the_jvm_dies_alone_while_a_task_holds_its_transaction(script, way: str):
    """Spark's Python goes on without it, and so does the worker that has begun to write. Each run
    dies at the next point, and each batch meets one of them.
    """
    one = script(way)
    late: list[psutil.Process] = []
    for batch, point in enumerate(WORKER_POINTS):
        at = f"{point}@{0 if way == WRITE else batch}"
        environment = one.environment(SPARKONCE_CRASH_AT=at, SPARKONCE_CRASH_SIGNAL="STOP")
        with started([sys.executable, one.path.name], one.folder, **environment) as python:
            late.append(await_a_sleeper(one))
            (jvm,) = (
                child
                for child in psutil.Process(python.pid).children()
                if child.name().startswith("java")
            )
            jvm.kill()
            assert python.wait(120) == 1, one.said()
    until_done(one, starts=1)
    assert one.values() == ALL
    for worker in late:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.resume()
            worker.wait(30)
    assert one.values() == ALL


@QUERIES
def test_x10_a_checkpoint_from_a_backup_is_refused(script, way: str, tmp_path: Path):
    """Until the user accepts that the records behind the backup come twice."""
    files = text_files(tmp_path / "in")
    later = sorted(files.iterdir())[2:]
    for path in later:
        path.rename(tmp_path / path.name)
    one = script(way, {"examples/*.py": str(files)})
    until_done(one, starts=1)
    folder, backup = tmp_path / "checkpoint", tmp_path / "backup"
    shutil.copytree(folder, backup)
    for path in later:
        (tmp_path / path.name).rename(path)
    until_done(one, starts=1)
    assert one.values() == ALL
    shutil.rmtree(folder)
    backup.rename(folder)
    for _ in range(2):  # the refused start changes nothing
        (tmp_path / "log").unlink()
        code, said = one.run()
        assert code == 1, said
        assert "The cluster has output of this application that the decision log does not" in said
        assert "last in the log: checkpoint 1" in said
        assert one.values() == ALL
    text = one.path.read_text()
    accepts = {
        FUNCTION: ('app_id="', 'accept_duplicates=True, app_id="'),
        WORD: ('.option("topic"', '.option("acceptDuplicates", True).option("topic"'),
    }
    one.path.write_text(text.replace(*accepts[way]))
    until_done(one, starts=1)
    assert one.values() == sorted(ALL + ALL[2 * PER_FILE :])


#: Where the first run of a job dies before the backup is made; "" for no backup at all. A backup
#: from behind the decision knows that the job is written.
BACKUPS = ["", "prepared_checked"]


@pytest.mark.parametrize("taken_at", BACKUPS)
def test_x10_a_job_whose_folder_is_lost_or_from_a_backup(script, taken_at: str, tmp_path: Path):
    """The job has ended well, and its log does not say so. Its next run is refused, until the user
    accepts that all comes twice.
    """
    one = script(WRITE)
    folder, backup = tmp_path / "checkpoint", tmp_path / "backup"
    if taken_at:
        killed(one, WRITE, taken_at)
        shutil.copytree(folder, backup)
    until_done(one, starts=1)
    assert one.values() == ALL
    shutil.rmtree(folder)
    if taken_at:
        backup.rename(folder)
    (tmp_path / "log").unlink()
    code, said = one.run()
    assert one.values() == ALL, "nothing is twice in silence"
    assert code == 1, said
    assert "The cluster has output of this application that the decision log does not" in said
    if not taken_at:
        rewrite(one, '.option("topic"', '.option("acceptDuplicates", True).option("topic"')
        until_done(one, starts=1)
        assert one.values() == sorted(2 * ALL)


def test_x13_another_number_of_cores(script):
    """Spark divides a source that counts by the cores: four tasks write, and two go on. What all
    four had prepared is aborted at once; what four had decided is committed, not written again.
    """
    one = script(WORD, {FILE_SOURCE: RATE_ITSELF, TO_THE_END: THREE_BATCHES})
    rewrite(one, "local[2]", "local[4]")
    killed(one, WORD, "prepared_checked@1", "decision_durable@2")
    rewrite(one, "local[4]", "local[2]")
    until_done(one, starts=1)
    values = one.values()
    assert values == list(range(len(values)))
    assert len(values) >= 60


#: Where a batch or a job is when the broker dies: in a task, or in the commit process.
BROKER_DIES = [
    (WORD, "records_flushed"),
    (WORD, "decision_durable"),
]


@pytest.mark.parametrize(("way", "point"), BROKER_DIES)
def test_x16_the_broker_dies_and_comes_back(script, cluster, way: str, point: str):
    """A decided batch waits for it. One that is not decided can fail, and runs again at the next
    start.
    """
    one = script(way)
    at = f"{point}@{0 if way == WRITE else 1}"
    environment = one.environment(SPARKONCE_CRASH_AT=at, SPARKONCE_CRASH_SIGNAL="STOP")
    with (
        Follower(one.bootstrap, one.topic) as reader,
        started([sys.executable, one.path.name], one.folder, **environment) as python,
    ):
        sleeper = await_a_sleeper(one)
        cluster.kill_broker(0)
        sleeper.resume()
        cluster.start_broker(0)
        code = python.wait(180)
        if point in WORKER_POINTS and code == 1:
            until_done(one)
        else:
            assert code == 0, one.said()
        found = [int(record.value or b"") for record in reader.drain()]
    assert sorted(found) == ALL
    assert one.values() == ALL


@QUERIES
def test_x15_the_newer_of_two_scripts_on_one_checkpoint_wins(script, way: str, tmp_path: Path):
    one = script(way, {FILE_SOURCE: RATE_SOURCE, TO_THE_END: ENDLESS})
    words = [sys.executable, one.path.name]
    with Follower(one.bootstrap, one.topic) as reader:
        with started(words, tmp_path, output="older", **one.environment()) as older:
            reader.until(lambda seen: len(seen) >= 40, timeout=120)
            one.path.write_text(one.path.read_text().replace(ENDLESS, THREE_BATCHES))
            # The older one goes on while the newer one starts: then Spark has planned a batch that
            # is decided, and the writer refuses it. Its user starts it again.
            until_done(one, starts=3)
            assert older.wait(120) == 1, one.said()
        values = one.values()
        assert values == list(range(len(values)))
        until_done(one, starts=1)
    values = one.values()
    assert values == list(range(len(values)))
    assert len(values) >= 100
