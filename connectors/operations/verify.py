"""The proof for a user's own topics: every input record is in the output, exactly once.

    1. fix the ends of the input: what is before them must have come out
    2. fix those of the output; no transaction that was open may hide records before them (else the
       proof fails and names them)
    3. ask for the ends of the input again: what came meanwhile may have come out, once
    4. sum both sides; equal sums end the proof, in constant memory
    5. else, or if sums are not enough, search which records differ
    6. if records are missing, nothing else is wrong and the topics grow, begin again at 2, for a
       while: the pipeline lags, or readers see one partition of a checkpoint before the other

Sums are enough for whole records (key and value): nobody can tell two equal ones apart. They are
not enough for a part of the record: if it repeats, the loss of one record and a duplicate of
another one have the same sum. So the search also looks whether each input record has an identity of
its own. Order, missing records and an input that grows need the search too.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from connectors.operations.bounded_scan import Range, Scanned, TopicEnds, held_back, scan
from connectors.operations.identity_search import (
    INPUT,
    OUTPUT,
    BagSum,
    Findings,
    Place,
    Rows,
    Search,
)
from connectors.operations.record_identity import Identify, parse_key_id
from connectors.operations.verdict import (
    DUPLICATED,
    FOREIGN,
    LOST_MIDDLE,
    LOST_TAIL,
    NO_IDENTITY,
    OPEN_TRANSACTION,
    ORDER_UNKNOWN,
    OUT_OF_ORDER,
    REPEATED,
    Example,
    Verdict,
)
from connectors.operations.verify_options import VerifyOptions
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import DataLossError

Progress = Callable[[str, int, int], None]
"""Called with the name of the step, how much of it is done, and all of it."""

_MARKER_WAIT_S = 0.1
_LAG_WAIT_S = 1.0


def verify(
    options: VerifyOptions,
    *,
    progress: Progress = lambda _step, _done, _all: None,
    clock: Clock = SYSTEM_CLOCK,
) -> Verdict:
    """Compare the input topics with the output topics, by the steps at the top of the file.

    Raises:
        ConfigurationError: an option is wrong or a topic does not exist.
        BrokerUnavailableError: no broker answered in time.
        DataLossError: records were removed while they were being verified.
    """
    options.validate()
    identify = (
        parse_key_id(options.key_id),
        parse_key_id(options.output_key_id or options.key_id, option="--output-key-id"),
    )
    ends = TopicEnds(options.kafka, clock=clock)
    log_ends = ends.log_ends(options.inputs, Deadline(options.timeout, clock))
    first = _input(ends, options, clock)
    due = {one.name: one.end for one in first}
    look = functools.partial(
        _look, ends, options, due=due, identify=identify, progress=progress, clock=clock
    )
    verdict = look()
    patience = Deadline(options.timeout, clock)
    while verdict.may_change and not patience.expired():
        patience.pause(_LAG_WAIT_S)
        verdict = look()
    verdict = replace(verdict, held_back=tuple(held_back(first, log_ends)))
    if verdict.empty:
        return verdict
    topics = [*options.inputs, *options.outputs]
    compacted = ends.compacted(topics, Deadline(options.timeout, clock))
    return replace(verdict, compacted=tuple(compacted))


def _look(
    ends: TopicEnds,
    options: VerifyOptions,
    *,
    due: Mapping[str, int],
    identify: tuple[Identify, Identify],
    progress: Progress,
    clock: Clock,
) -> Verdict:
    """Compare the output as it is now with the input; before the offsets `due` it must be there."""
    outputs, hidden = _settled(ends, options, clock)
    # Asked last: whatever is in the output up to its ends, the pipeline has read before these.
    there = _input(ends, options, clock)
    inputs = [_from(item, options.begins, due.get(item.name, 0)) for item in there]
    sides = _Sides(
        options, inputs=inputs, outputs=outputs, identify=identify, progress=progress, clock=clock
    )
    verdict = _judge(sides)
    growing = _grown(ends, [*inputs, *outputs], Deadline(options.timeout, clock))
    if hidden:
        verdict = replace(
            verdict,
            anomalies={OPEN_TRANSACTION: len(hidden), **verdict.anomalies},
            examples={OPEN_TRANSACTION: tuple(hidden), **verdict.examples},
        )
    return replace(
        verdict,
        still_growing=growing,
        removed=(*_removed(there, options.begins), *_removed(outputs, {})),
    )


def _input(ends: TopicEnds, options: VerifyOptions, clock: Clock) -> list[Range]:
    """Return what a reader of committed records sees now of the partitions that count."""
    return [
        one
        for one in ends.committed(options.inputs, Deadline(options.timeout, clock))
        if not options.partitions or one.name in options.partitions
    ]


def _removed(ranges: Sequence[Range], begins: Mapping[str, int]) -> list[str]:
    """Name the partitions that begin behind the first offset that counts."""
    return [
        f"{item.name}: offsets {begins.get(item.name, 0)} to {item.begin - 1}"
        for item in ranges
        if begins.get(item.name, 0) < item.begin
    ]


def _from(item: Range, begins: Mapping[str, int], due: int) -> Range:
    """Begin where the pipeline began; what must have come out ends before the offset `due`."""
    begin = max(item.begin, begins.get(item.name, item.begin))
    late = max(begin, due)
    return replace(item, begin=begin, end=max(late, item.end), late=late)


def _settled(
    ends: TopicEnds, options: VerifyOptions, clock: Clock
) -> tuple[list[Range], list[Example]]:
    """Return the output's ranges once nothing hides what was there at first, else what still does.

    Each look has the whole time for its answers: a last look with what is left of the patience
    would say that no broker answers, and not what is open (seen on a busy machine).
    """
    patience = Deadline(options.timeout, clock)
    # Asked once: a pipeline that runs has an open transaction at each look, but never the same.
    log_ends = ends.log_ends(options.outputs, Deadline(options.timeout, clock))
    while True:
        ranges = ends.committed(options.outputs, Deadline(options.timeout, clock))
        hidden = held_back(ranges, log_ends)
        if not hidden or patience.expired():
            return ranges, [Example(place, "") for place in hidden]
        patience.pause(_MARKER_WAIT_S)


class _Sides:
    """Both sides of the comparison, readable as often as needed up to the same ends."""

    def __init__(
        self,
        options: VerifyOptions,
        *,
        inputs: list[Range],
        outputs: list[Range],
        identify: tuple[Identify, Identify],
        progress: Progress,
        clock: Clock,
    ) -> None:
        self.options = options
        self.inputs = inputs
        self.outputs = outputs
        self.progress = progress
        self._clock = clock
        self._identify = identify

    @property
    def late(self) -> bool:
        """Return whether the input has grown: what is in the output is then between two sums."""
        return any(item.late < item.end for item in self.inputs)

    def offsets(self) -> int:
        """Return how many offsets there are: at least the number of records."""
        return sum(item.end - item.begin for item in [*self.inputs, *self.outputs])

    def read(self, add: tuple[Callable[[Rows], None], Callable[[Rows], None]]) -> _Counted:
        """Read both sides once, and hand the rows of each side to its function."""
        counted = (Scanned(), Scanned())
        for side, ranges, step in ((INPUT, self.inputs, "input"), (OUTPUT, self.outputs, "output")):
            for rows in self._scan(side, ranges, step, counted[side]):
                add[side](rows)
        return _Counted(counted)

    def _scan(
        self, side: int, ranges: Sequence[Range], step: str, counted: Scanned
    ) -> Iterable[Rows]:
        done, total = 0, sum(item.end - item.begin for item in ranges)

        def passed(offsets: int) -> None:
            nonlocal done
            done += offsets
            self.progress(step, done, total)

        self.progress(step, 0, total)
        return scan(
            self.options.kafka,
            ranges,
            self._identify[side],
            side=side,
            counted=counted,
            patience=self.options.timeout,
            on_progress=passed,
            clock=self._clock,
        )


class _Counted:
    """What one reading of both sides counted."""

    def __init__(self, sides: tuple[Scanned, Scanned]) -> None:
        self.records = (sides[INPUT].records, sides[OUTPUT].records)
        self.late = sides[INPUT].late
        self.unidentified = sides[INPUT].unidentified + sides[OUTPUT].unidentified
        self.places = tuple(
            Example(place, "") for place in (*sides[OUTPUT].examples, *sides[INPUT].examples)
        )


def _judge(sides: _Sides) -> Verdict:
    options = sides.options
    if options.ordered or options.allow_missing or options.unique or sides.late:
        return _search(sides, None)
    sums = BagSum(), BagSum()
    counted = sides.read((sums[INPUT].add, sums[OUTPUT].add))
    if sums[INPUT] != sums[OUTPUT]:
        return _search(sides, counted)
    return _verdict(sides, counted, Findings(0), searched=False)


def _search(sides: _Sides, before: _Counted | None) -> Verdict:
    options = sides.options
    with tempfile.TemporaryDirectory(prefix="sparkonce-verify-", dir=options.directory) as folder:
        search = Search(
            Path(folder),
            records=sides.offsets(),
            ordered=options.ordered,
            examples=options.examples,
            unique=options.unique,
        )
        counted = sides.read((search.add, search.add))
        if before is not None and before.records != counted.records:
            raise DataLossError(
                "The topics changed between two readings up to the same offsets.",
                cause="retention, compaction or a deletion of records",
                where=f"records before {before.records}, now {counted.records}",
                option="retention.ms, cleanup.policy of the topics",
            )
        findings = search.finish(lambda done, total: sides.progress("compare", done, total))
    return _verdict(sides, counted, findings, searched=True)


def _verdict(sides: _Sides, counted: _Counted, found: Findings, *, searched: bool) -> Verdict:
    counts = {
        DUPLICATED: found.duplicated,
        LOST_TAIL: found.lost_at_tail,
        LOST_MIDDLE: found.lost_in_middle,
        FOREIGN: found.foreign,
        OUT_OF_ORDER: found.out_of_order,
        ORDER_UNKNOWN: found.order_unknown,
        REPEATED: found.repeated,
        NO_IDENTITY: counted.unidentified,
    }
    examples = {
        name: tuple(
            Example(_name(output, sides.outputs), _name(source, sides.inputs))
            for output, source in places
        )
        for name, places in found.examples.items()
    }
    if counted.unidentified:
        examples[NO_IDENTITY] = counted.places[: sides.options.examples]
    return Verdict(
        records_in=counted.records[INPUT] - counted.late,
        records_late=counted.late,
        records_out=counted.records[OUTPUT],
        missing_allowed=sides.options.allow_missing,
        anomalies={name: count for name, count in counts.items() if count},
        examples=examples,
        searched=searched,
    )


def _name(place: Place | None, ranges: Sequence[Range]) -> str:
    return "" if place is None else f"{ranges[place[0]].name}@{place[1]}"


def _grown(ends: TopicEnds, ranges: Sequence[Range], deadline: Deadline) -> tuple[str, ...]:
    """Name the partitions that have more committed offsets than when the ends were fixed."""
    topics = list(dict.fromkeys(item.topic for item in ranges))
    now = {item.name: item.end for item in ends.committed(topics, deadline)}
    return tuple(item.name for item in ranges if now[item.name] > item.end)
