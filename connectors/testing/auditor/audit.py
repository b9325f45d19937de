"""The audit of a user's topics: reads input and output, and reports what is not exactly once.

The `id` identifies a record on both sides:

    record        key and value: for pipelines that copy
    key           the key
    value         the value
    header:NAME   the last header of that name
    json:FIELD    a field of the value read as JSON; dots go into nested objects
    a function    from a `Record` to anything hashable
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from connectors.testing.auditor.checkers import AnyRecord, Case, History, history_of, judge
from connectors.testing.auditor.reader import Record, read_committed

Identify = Callable[[Record], Hashable]
FORMS = "record, key, value, header:NAME, json:FIELD, or a function"
_ORDER = "out of order"
_SHOWN = 10
_WIDEST = 300


@dataclass(frozen=True)
class Audit:
    """The expected records, the seen records, and every anomaly between them.

    Attributes:
        history: both sides.
        cases: the anomalies, each by its name; see `checkers`.
        input: the topics of the input.
        output: the topics of the output.
        story: the pipeline's earlier runs, one line per run; a part of the failure's text.
    """

    history: History
    cases: tuple[Case, ...]
    input: tuple[str, ...]
    output: tuple[str, ...]
    story: Sequence[str] = field(default=())

    @property
    def lost(self) -> list[Hashable]:
        """Input identities without a committed record in the output."""
        seen = {record.id for record in self.history.seen if not record.aborted}
        return [record.id for record in self.history.expected if record.id not in seen]

    @property
    def duplicated(self) -> list[Hashable]:
        """Input identities that are visible more than once."""
        counts = Counter(record.id for record in self.history.seen if not record.aborted)
        return [record.id for record in self.history.expected if counts[record.id] > 1]

    @property
    def foreign(self) -> list[Hashable]:
        """Output identities that are not in the input."""
        known = {record.id for record in self.history.expected}
        return list(dict.fromkeys(r.id for r in self.history.seen if r.id not in known))

    def assert_exactly_once(self, *, ordered: bool = False) -> None:
        """Fail unless every input record is visible once in the output, and nothing else is.

        Args:
            ordered: also fail when records of one input partition changed places in an output
                partition. A pipeline that shuffles (groupBy, repartition) does not promise order.

        Raises:
            AssertionError: the text names lost, duplicated and foreign identities, up to a bound.
        """
        cases = [case for case in self.cases if ordered or case.anomaly != _ORDER]
        if cases:
            raise AssertionError(self._text(cases))

    def _text(self, cases: Sequence[Case]) -> str:
        totals = Counter(case.anomaly for case in cases)
        summary = ", ".join(f"{name} ({count})" for name, count in totals.items())
        lines = [
            f"not exactly once: {summary}",
            f"  input:      {len(self.history.expected)} records of {', '.join(self.input)}",
            f"  output:     {len(self.history.seen)} records of {', '.join(self.output)}",
        ]
        named = (("lost", self.lost), ("duplicated", self.duplicated), ("foreign", self.foreign))
        for name, ids in named:
            if ids:
                shown = ", ".join(map(repr, ids[:_SHOWN]))
                more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
                lines.append(_cut(f"  {name + ':':<11} {shown}") + more)
        lines += [_cut(f"  - {case}") for case in cases[:_SHOWN]]
        if len(cases) > _SHOWN:
            lines.append(f"  - and {len(cases) - _SHOWN} more")
        lines += [f"  run {number:<2}     {what}" for number, what in enumerate(self.story, 1)]
        return "\n".join(lines)


def audit(
    bootstrap_servers: str,
    *,
    input: str | Iterable[str],  # noqa: A002 - the word for it
    output: str | Iterable[str],
    id: str | Identify = "record",  # noqa: A002 - as in `sparkonce verify --key-id`
    output_id: str | Identify | None = None,
    expected: Callable[[Record], bool] | None = None,
    story: Sequence[str] = (),
    timeout: float = 60.0,
) -> Audit:
    """Read both sides with a plain read_committed consumer, and judge the records.

    Args:
        bootstrap_servers: the broker.
        input: topic or topics of the input.
        output: topic or topics of the output; a record is expected once in all of them
            together.
        id: what identifies a record, see the module.
        output_id: the same for the output, if it differs.
        expected: the input records that must come through; without it, all of them.
        story: see `Audit`.
        timeout: seconds for each topic.

    Raises:
        OpenTransaction: an undecided transaction hides records: nothing can be counted.
        AssertionError: nothing was expected, or a record has no identity.
        ValueError: the form of `id` is unknown, or identities of the input repeat.
    """
    inputs = (input,) if isinstance(input, str) else tuple(input)
    outputs = (output,) if isinstance(output, str) else tuple(output)
    of_input = _identify(id)
    of_output = of_input if output_id is None else _identify(output_id)
    # The output first: a record that comes while we read is then not a foreign one.
    seen = [r for name in outputs for r in read_committed(bootstrap_servers, name, timeout=timeout)]
    sent = [r for name in inputs for r in read_committed(bootstrap_servers, name, timeout=timeout)]
    if expected is not None:
        sent = [record for record in sent if expected(record)]
    if not sent:
        raise AssertionError(f"nothing to audit: no record is expected from {', '.join(inputs)}")
    history = history_of(
        sent, seen, identify=_known(of_input, "id"), identify_output=_known(of_output, "output_id")
    )
    return Audit(history, tuple(judge(history)), inputs, outputs, tuple(story))


def _identify(form: str | Identify) -> Identify:
    if not isinstance(form, str):
        return form
    kind, _, name = form.partition(":")
    if kind == "header" and name:
        return lambda record: record.header(name)
    if kind == "json" and name:
        path = name.split(".")
        return lambda record: _json_field(record.value, path)
    simple: dict[str, Identify] = {
        "record": lambda record: (record.key, record.value),
        "key": lambda record: record.key,
        "value": lambda record: record.value,
    }
    if form not in simple:
        raise ValueError(f"id={form!r}: known are {FORMS}")
    return simple[form]


def _json_field(value: bytes | None, path: Sequence[str]) -> bytes | None:
    """Return a field's text, or its JSON; equal text in a key or a header is one identity."""
    try:
        found: Any = json.loads(value or b"null")
    except ValueError:
        return None
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    if found is None or isinstance(found, str):
        return None if found is None else found.encode()
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()


def _known(identify: Identify, option: str) -> Callable[[AnyRecord], Hashable]:
    """Refuse records without an identity: leaving them out would hide a loss."""

    def known(record: Any) -> Hashable:
        found = identify(record)
        if found is None:
            place = f"{record.topic}-{record.partition}@{record.offset}"
            raise AssertionError(_cut(f"{place} has no identity; look at {option}: {record}"))
        return found

    return known


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
