"""Reads a decision log beside the broker; it also has the sinks for a repair."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import orjson

from connectors.kafka.sink.kafka_committer import KafkaCommitter
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.operations.existing_log import existing_log
from connectors.operations.transaction_table import Row, Seen, Standing, join
from connectors.wire.partition_leaders import Unended
from transactions.checkpoint_location import BOUND_TO, CheckpointLocation
from transactions.clock import SYSTEM_CLOCK, Deadline
from transactions.committable import Committable
from transactions.decision_log import read_log
from transactions.errors import BrokerUnavailableError, ConfigurationError, IdentityMismatchError
from transactions.log_location import LogLocation
from transactions.log_state import LogState

_TRIES = 5
#: `list` shows what is there now: it does not wait for a leader that is away.
_LOOK_S = 2.0


class TransactionReader:
    """One checkpoint and the clusters of its sinks; reads, and appends nothing.

    Args:
        checkpoint: of a driver: a folder, an address, or an address with options of its store.
        kafka: client settings for every sink, without prefix; empty when no broker is known.
        sinks: sinks of a job file, by name; they win over `kafka`.
        decision_log: where a job file keeps the log.

    Raises:
        ConfigurationError: there is no log, or the sinks of the job file are not those of the log.
        IdentityMismatchError: the checkpoint belongs to another log.
        LogCorruptedError, LogVersionError: the log cannot be read.

    Attributes:
        backend: where the log is.
        state: what the log said at the last read.
        sinks: by name, to ask and to repair with; empty when no broker is known.
        open_ids: sink -> open transactions that its cluster listed at the last `rows`.
    """

    def __init__(
        self,
        checkpoint: str | CheckpointLocation,
        kafka: Mapping[str, str],
        sinks: Mapping[str, KafkaSink] | None = None,
        decision_log: LogLocation | None = None,
    ) -> None:
        self._place = CheckpointLocation.of(checkpoint)
        self.backend = existing_log(self._place, decision_log)
        self.state = read_log(self.backend)
        self._refuse_other_folder()
        self.open_ids: dict[str, list[str]] = {}
        self.sinks = {
            name: KafkaCommitter(name, options.settings)
            for name, options in _options(self._place, self.state, kafka, sinks or {}).items()
        }

    def __enter__(self) -> TransactionReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sink in self.sinks.values():
            sink.close()

    def rows(self, deadline: Deadline) -> list[Row]:
        """Return every transaction with its verdict. If a partition's leader is silent, a commit
        that readers do not see stands as committed: who acts on that asks `hidden` first.

        A running driver goes on meanwhile, so log and broker are read until the log is the same
        before and after.

        Raises:
            BrokerUnavailableError, AuthenticationError: a cluster could not be asked.
            LogCorruptedError, LogVersionError: the log cannot be read.
        """
        for _ in range(_TRIES):
            self.state = read_log(self.backend)
            seen = self._seen(deadline)
            if read_log(self.backend).tail == self.state.tail:
                break
        rows = join(seen)
        try:
            hidden = self.hidden(rows, Deadline(min(_LOOK_S, deadline.remaining())))
        except BrokerUnavailableError:
            return rows
        return join(dataclasses.replace(seen, hidden=_by_token(rows, hidden)))

    def hidden(self, rows: list[Row], deadline: Deadline) -> dict[str, list[Unended]]:
        """Return, per sink, where a marker of the committed rows is missing: in the partitions that
        were written, and in those that keep the offsets of groups.

        Raises:
            BrokerUnavailableError: a partition has no leader that answers.
        """
        found: dict[str, list[Unended]] = {}
        for name, sink in self.sinks.items():
            proven = (Standing.COMMITTED, Standing.HIDDEN)
            mine = [
                r.decided for r in rows if r.decided and r.sink == name and r.standing in proven
            ]
            if mine:
                more = sink.visibility.offsets_partitions(deadline)
                found[name] = sink.visibility.hidden(mine, deadline, more)
        return found

    def hidden_places(self, rows: list[Row], deadline: Deadline) -> list[str]:
        """See `hidden`: the places in all sinks, as an error names them."""
        return [str(one) for found in self.hidden(rows, deadline).values() for one in found]

    def refuse_others(self) -> None:
        """Check that every decided transaction is one of Kafka's.

        Raises:
            ConfigurationError: transactions of another sink belong to the same decision, and only
                the pipeline itself knows their target.
        """
        decision = self.state.decision
        decided = () if decision is None else decision.committables
        others = {one.sink for one in decided} & _others(self.state)
        if others:
            raise ConfigurationError(
                "The last decision has transactions of sinks that are not Kafka.",
                where=f"{self._place}: sinks {sorted(others)}",
                cause="only the pipeline knows their target; its next start commits all of them",
                option="start the pipeline",
            )

    def run_alive(self) -> bool | None:
        """Return whether the newest run's process lives; None when it is on another machine."""
        host, _, process = self.state.host.rpartition("/")
        if host != socket.gethostname() or not process.isdigit():
            return None
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        try:  # a dead process keeps its number until it is waited for; in a container nobody may
            state = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
        except OSError:
            return True  # no Linux
        return state != "Z"

    def _refuse_other_folder(self) -> None:
        """What Spark has finished in a folder proves a commit only for the folder's own log."""
        bound = self._place.read(BOUND_TO)
        owner = self.state.log_id if bound is None else bound.decode()
        if owner != self.state.log_id:
            raise IdentityMismatchError(
                "The decision log does not belong to this checkpoint folder.",
                where=f"{self._place}, log {self.state.log_id or '(new)'} in "
                f"{self.backend.describe()}",
                cause=f"the folder belongs to the log {owner}: one of them was changed, moved or "
                "restored without the other",
                option="--checkpoint; or --job, and in the job file checkpoint and [decision_log]",
            )

    def _seen(self, deadline: Deadline) -> Seen:
        known = Seen(
            log=self.state,
            finished=self._finished(),
            run_alive=self.run_alive(),
            now_ms=SYSTEM_CLOCK.now_ms(),
        )
        if not self.sinks:
            return known
        decision = self.state.decision
        decided = () if decision is None else decision.committables
        described, markers = {}, {}
        self.open_ids = {}
        for name, sink in self.sinks.items():
            mine = [one for one in decided if one.sink == name]
            found = sink.wire.list_open(self.state.application_id, None, deadline)
            self.open_ids[name] = [one.transactional_id for one in found]
            ids = [one.transactional_id for one in mine]
            described.update(sink.wire.describe([*ids, *self.open_ids[name]], deadline))
            markers.update(_markers(sink, mine, deadline))
        return Seen(
            log=known.log,
            finished=known.finished,
            run_alive=known.run_alive,
            now_ms=known.now_ms,
            described=described,
            open_ids=self.open_ids,
            markers=markers,
        )

    def _finished(self) -> int:
        if self._place.folder is None:
            return -1
        commits = self._place.folder / "spark" / "commits"
        names = (path.name for path in commits.iterdir()) if commits.is_dir() else ()
        return max((int(name) for name in names if name.isdigit()), default=-1)


def _options(
    place: CheckpointLocation,
    state: LogState,
    kafka: Mapping[str, str],
    given: Mapping[str, KafkaSink],
) -> dict[str, KafkaSink]:
    """Return options for the sinks that the log names; it does not say where their brokers are."""
    if not kafka and not given:
        return {}
    others = _others(state)
    every = orjson.loads(state.identity.get("sinks", "{}"))
    named = {name: sink for name, sink in every.items() if name not in others}
    if given and given.keys() != named.keys():
        raise ConfigurationError(
            "The job file does not belong to this checkpoint: its sinks differ.",
            where=f"{place}: {sorted(named)}; job file: {sorted(given)}",
            cause="the file is of another pipeline, or its sinks were changed since the last start",
            option=f"checkpoint={place} and [[sink]], in the job file",
        )
    if given:
        return dict(given)
    rest = {name: value for name, value in kafka.items() if name != "bootstrap.servers"}
    servers = kafka.get("bootstrap.servers", "")
    return {
        name: KafkaSink(bootstrap_servers=servers, topic=sink["topic"], name=name, kafka=rest)
        for name, sink in named.items()
    }


def _others(state: LogState) -> frozenset[str]:
    """Return the names of the sinks that are not Kafka's."""
    sinks: dict[str, dict[str, str]] = orjson.loads(state.identity.get("sinks", "{}"))
    return frozenset(name for name, sink in sinks.items() if sink.get("kind", "kafka") != "kafka")


def _by_token(rows: list[Row], hidden: Mapping[str, list[Unended]]) -> dict[str, str]:
    """Name the places of each committed transaction."""
    return {
        row.decided.token: ", ".join(places)
        for row in rows
        if row.decided is not None
        and (
            places := [
                one.partition
                for one in hidden.get(row.sink, ())
                if (one.producer_id, one.producer_epoch) == (row.producer_id, row.producer_epoch)
            ]
        )
    }


def _markers(
    sink: KafkaCommitter, committables: list[Committable], deadline: Deadline
) -> dict[str, tuple[int, str]]:
    """Read what is committed at the places of the tokens; never waits for an open transaction."""
    groups: dict[str, list[str]] = {}
    for one in committables:
        groups.setdefault(one.marker_group, []).append(one.marker_partition)
    found = {
        group: sink.wire.read_markers(group, partitions, deadline, stable=False)
        for group, partitions in groups.items()
    }
    return {
        one.token: marker
        for one in committables
        if (marker := found[one.marker_group].get(one.marker_partition)) is not None
    }
