"""What a job file says, as one frozen object, and the rules between its parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from connectors.options.kafka_source import KafkaSource
from connectors.options.modes import check_source, longest_interval_s, one_sink
from connectors.options.table import CONTINUOUS, MICRO_BATCH, PIPELINE
from transactions.checkpoint_location import CheckpointLocation
from transactions.errors import ConfigurationError
from transactions.log_location import LogLocation
from transactions.sink import Sink

_ONE_STAGE: Final = "a plan can need a shuffle or state; the continuous stage has neither"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SinkDefinition:
    """One `[[sink]]`.

    Attributes:
        sink: where its branch goes.
        sql: its own query over `source` (and over `transformed`, if there is a transform).
    """

    sink: Sink
    sql: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobDefinition:
    """All that a job file says.

    Attributes:
        path: the file.
        app_id: see `StreamingDriver`.
        checkpoint: absolute folder, or an address in an object store or in HDFS.
        store: options of that store, by its names; they may be secrets. For HDFS they begin with
            the `hadoop.*` of `spark`.
        mode: one of `connectors.options.modes`.
        driver: the file's options for the driver of its mode, by the names of its arguments; see
            `connectors.options.table.PIPELINE`.
        master: Spark's master URL. None: that of `spark-submit`, else ``local[*]``.
        log_level: of the Java side. None: that of `spark-submit`, else ``ERROR``.
        class_archive: make the class archive of this machine beside the work, if there is none.
        decision_log: where the log is kept, if not in the checkpoint folder.
        source: where records come from.
        sinks: where they go, at least one.
        sql: the transform as a query over `source`.
        function: the transform as ``module:name``; the file's folder is importable.
        arrow: the transform as the ``module:name`` of an Arrow function.
        columns: the columns that the function, or the plain copy, gives to the sinks; see
            `arrow_pipeline`.
        spark: further Spark settings.
    """

    path: Path
    app_id: str
    checkpoint: str
    store: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    mode: str = MICRO_BATCH
    driver: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    master: str | None = None
    log_level: str | None = None
    class_archive: bool = True
    decision_log: LogLocation | None = None
    source: KafkaSource
    sinks: tuple[SinkDefinition, ...]
    sql: str | None = None
    function: str | None = None
    arrow: str | None = None
    columns: tuple[str, ...] | None = None
    spark: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def targets(self) -> list[Sink]:
        """The sinks themselves, in the order of the file."""
        return [definition.sink for definition in self.sinks]

    @property
    def location(self) -> CheckpointLocation:
        """Where the checkpoint lies.

        Raises:
            ConfigurationError: a folder is given options of a store.
        """
        return CheckpointLocation(self.checkpoint, self.store)

    def option(self, name: str) -> Any:
        """Return what the file says about an option of its driver, or the default of its mode."""
        row = PIPELINE.find(name)
        assert row is not None, name
        return self.driver.get(row.python_name, row.value_in(self.mode))

    @property
    def interval_s(self) -> float:
        """The longest time between two barriers; 0 where a batch is a checkpoint."""
        if self.mode != CONTINUOUS:
            return 0.0
        return longest_interval_s(self.option("most_interval"), self.option("barrier_interval"))

    def validate(self) -> None:
        """Check the rules between mode, source, transform and sinks.

        Raises:
            ConfigurationError: the mode cannot run this job. The continuous mode has one stage, so
                a job that needs Spark's planner is refused. Or a folder has options of a store.
        """
        try:
            _ = self.location
        except ConfigurationError as error:
            raise self._wrong(error.what, "[app]", error.cause, error.option) from error
        if self.mode != CONTINUOUS:
            return
        try:
            check_source(self.mode, self.source)
        except ConfigurationError as error:
            raise self._wrong(error.what, "[source]", error.cause, error.option) from error
        try:
            one_sink(self.targets)
        except ConfigurationError as error:
            raise self._wrong(error.what, "[sink] 2", error.cause, error.option) from error
        for kind, text in (("sql", self.sql), ("function", self.function)):
            if text is not None:
                raise self._wrong(
                    f"A continuous job cannot have a transform by {kind}.",
                    "[transform]",
                    f'{_ONE_STAGE}; write arrow = "module:name", or mode = "{MICRO_BATCH}"',
                    f"{kind} = {text}",
                )
        for number, definition in enumerate(self.sinks, 1):
            if definition.sql is not None:
                raise self._wrong(
                    "The sink of a continuous job cannot have a query.",
                    f"[sink] {number}",
                    f"{_ONE_STAGE}; use [transform] arrow",
                    f"sql = {definition.sql}",
                )

    def _wrong(self, what: str, place: str, cause: str, option: str) -> ConfigurationError:
        return ConfigurationError(what, where=f"{self.path}, {place}", cause=cause, option=option)
