"""The options as text, made from the table: `sparkonce run --help`, and docs/options.md. The
command ``python -m connectors.options.page > docs/options.md`` writes the page.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import Final

from connectors.options.option import Option, Table
from connectors.options.query_table import QUERY
from connectors.options.sink_table import FILE_SINK, KAFKA_SINK, POSTGRES_SINK
from connectors.options.table import (
    APP,
    CONTINUOUS,
    MICRO_BATCH,
    PIPELINE,
    SOURCE,
    TRANSFORM,
)

#: Heading, the text below it, the rows.
PLACES: Final = (
    (
        "The application: `[app]`",
        "`store.*` are options of the object store of the checkpoint "
        "([checkpoint_address.md](checkpoint_address.md)).",
        APP,
    ),
    (
        "The driver: `[app]`, or arguments in Python",
        "In Python these are arguments of `StreamingDriver`, `ContinuousDriver` and "
        "`arrow_pipeline`; a duration is a number of seconds there, and its name ends in `_s`: "
        "`checkpoint_timeout_s=600.0`.",
        PIPELINE,
    ),
    (
        "The source: `[source]`, or options of `kafka-exactly-once`",
        "Names are Spark's; upper and lower case are the same. `kafka.*` passes through to the "
        "client, [logins](logging_in.md) too; `kafka.bootstrap.servers` must be there.",
        SOURCE,
    ),
    (
        "The transform: `[transform]`",
        "One of these options; without them the job copies its records.",
        TRANSFORM,
    ),
    (
        "A Kafka sink: `[[sink]]`",
        "`kafka.*` passes through to the client, [logins](logging_in.md) too; "
        "`kafka.bootstrap.servers` must be there. Each `[[sink]]` may have `sql`, a query of its "
        "own.",
        KAFKA_SINK,
    ),
    (
        "A query of your own: `writeStream` and `write`",
        'Options of `format("kafka-exactly-once")` in `df.writeStream` and `df.write`, beside '
        "those of a Kafka sink; upper and lower case are the same ([own_query.md](own_query.md)).",
        QUERY,
    ),
    (
        'A sink of files: `[[sink]]` with `kind = "files"`',
        "`store.*` are options of the object store ([file_sink.md](file_sink.md)).",
        FILE_SINK,
    ),
    (
        'A PostgreSQL sink: `[[sink]]` with `kind = "postgres"`',
        "[postgres_sink.md](postgres_sink.md) says what the server needs.",
        POSTGRES_SINK,
    ),
)

_INTRODUCTION: Final = """\
# Options

This page is made from the table that parses the options (`connectors/options/table.py`).

An unknown option is an error that names the nearest one. A duration is a number and a unit:
`500ms`, `10s`, `1min`, `10 minutes`, `1h`; a number alone is in seconds, and in milliseconds where
the name of the option ends in `Ms`. In a job file `${NAME}` is an environment variable,
`${file:PATH}` the content of a file, and relative paths are relative to the job file. Beside these
tables a job file has `[decision_log]` ([decision_log.md](decision_log.md)) and `[spark]`, any
setting of Spark.
"""

_HEAD: Final = "| option | type | default | what it does |\n|---|---|---|---|\n"


def page() -> str:
    """Return docs/options.md."""
    return _INTRODUCTION + "".join(_section(*place) for place in PLACES)


def help_text() -> str:
    """Return the options of a job file for `sparkonce run --help`; click keeps the lines."""
    lines: list[str] = []
    for heading, _, table in PLACES:
        lines += ["\b", heading.replace("`", "")]
        for option in table.options:
            lines += _entry(option)
        lines.append("")
    return "\n".join(lines)


def _section(heading: str, below: str, table: Table) -> str:
    rows = "".join(
        f"| `{option.name}` | {option.kind.name} | {_default(option)} | {_only(option)}"
        f"{option.says} |\n"
        for option in table.options
    )
    text = f"\n{below}\n" if below else ""
    return f"\n## {heading}\n{text}\n{_HEAD}{rows}"


def _default(option: Option) -> str:
    if isinstance(option.default, str):
        return f"`{option.default}`" if option.default else ""
    batches, continuous = option.default[MICRO_BATCH], option.default[CONTINUOUS]
    return f"`{batches}`; {CONTINUOUS} " + (f"`{continuous}`" if continuous else "none")


def _only(option: Option) -> str:
    return f"Only in {option.mode} mode. " if option.mode else ""


def _entry(option: Option) -> Iterator[str]:
    default = _default(option).replace("`", "")
    says = f"{_only(option)}{option.says}".replace("`", "")
    yield f"  {option.name}" + (f"  [{default}]" if default else "")
    yield from textwrap.wrap(says, 72, initial_indent="      ", subsequent_indent="      ")


if __name__ == "__main__":
    sys.stdout.write(page())
