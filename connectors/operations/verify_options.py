"""What `sparkonce verify` is asked to compare, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from connectors.operations.record_identity import WHOLE_RECORD
from transactions.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """What to compare, and how.

    Attributes:
        kafka: client settings in Java naming, without the ``kafka.`` prefix.
        inputs: the source topics.
        partitions: the partitions of the inputs that count, as ``topic-partition``; none: all.
        outputs: the topics that the pipeline writes to; together they hold every input once.
        key_id: how to recognise a record, see `connectors.operations.record_identity`.
        output_key_id: how to recognise it in the output; by default as `key_id`.
        ordered: also prove that records of one input partition keep their order in each output
            partition.
        allow_missing: the pipeline drops records on purpose; a missing record is no failure.
        allow_repeats: several input records may have one identity; then the proof is that each
            identity is in the output as often as in the input.
        begins: per ``topic-partition`` of the input, the offset before which nothing counts; other
            partitions count from their beginning.
        timeout: seconds to wait for open transactions to end, for a pipeline that lags, and without
            any progress.
        examples: how many records of each kind the verdict names.
        directory: where hashes are spilled when the sums differ; by default the system's place.
    """

    kafka: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    key_id: str = WHOLE_RECORD
    output_key_id: str | None = None
    ordered: bool = False
    allow_missing: bool = False
    allow_repeats: bool = False
    begins: Mapping[str, int] = field(default_factory=dict)
    timeout: float = 60.0
    examples: int = 10
    directory: Path | None = None
    partitions: frozenset[str] = frozenset()

    @property
    def unique(self) -> bool:
        """Return whether each input record must have an identity of its own."""
        whole = {self.key_id, self.output_key_id or self.key_id} == {WHOLE_RECORD}
        return not (whole or self.allow_repeats)

    @property
    def route(self) -> str:
        """Return both sides, as errors and the table of the result name them."""
        sides = (" + ".join(topics) or "(none)" for topics in (self.inputs, self.outputs))
        return " -> ".join(sides)

    def validate(self) -> None:
        """Refuse options that can prove nothing.

        Raises:
            ConfigurationError: a topic is missing or on both sides, a value is out of range, or two
                options contradict each other.
        """
        for option, topics in (("--input", self.inputs), ("--output", self.outputs)):
            if not topics or len(set(topics)) != len(topics):
                raise ConfigurationError(
                    "Topics are missing or given twice.",
                    where=self.route,
                    cause="each topic is named once; a job file names both sides: --job JOB.toml",
                    option=f"{option}={','.join(topics)}",
                )
        both = set(self.inputs) & set(self.outputs)
        if both:
            raise ConfigurationError(
                "A topic cannot be both input and output.",
                where=self.route,
                cause="the proof would compare the topic with itself",
                option=f"--output={min(both)}",
            )
        if self.ordered and self.allow_repeats:
            raise ConfigurationError(
                "The order of records cannot be proven if several may have one identity.",
                where=self.route,
                cause="nobody can tell which of them came out first",
                option="--ordered, --allow-repeats: give one of them",
            )
        if self.timeout <= 0 or self.examples < 0:
            raise ConfigurationError(
                "A number is out of range.",
                where=self.route,
                cause="a timeout is longer than zero, and the number of examples not negative",
                option=f"--timeout={self.timeout:g}, --examples={self.examples}",
            )
