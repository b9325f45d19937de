"""`python -m tests.chaos --minutes 10 --seed 7`: a chaos run for people; `make chaos` calls it."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from connectors.options.modes import MODES
from connectors.options.table import MICRO_BATCH
from tests.chaos.runner import AGGREGATION, STATEFUL, Options, run
from tests.chaos.schedule import EVERYTHING, OF_THREE, Kind

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def main() -> int:
    """Return 0 when the guarantee held, 1 on any violation, 130 after ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults are done")
    parser.add_argument("--seed", type=int, default=None, help="replays a schedule")
    parser.add_argument("--mode", choices=MODES, default=MICRO_BATCH, help="of the pipeline")
    parser.add_argument(
        "--stateful", choices=STATEFUL, default=AGGREGATION, help="how micro-batches count"
    )
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3, help="all proxied")
    parser.add_argument("--rate", type=float, default=100.0, help="input records per second")
    parser.add_argument("--kinds", nargs="+", choices=[k.name for k in Kind], help="only these")
    parser.add_argument(
        "--keep", metavar="NAME", type=_file_name, help="append the line to benchmarks/results"
    )
    given = parser.parse_args()
    if given.mode != MICRO_BATCH and given.stateful != AGGREGATION:
        parser.error(f"--stateful {given.stateful}: the {given.mode} mode keeps no state")
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    kinds = [Kind[name] for name in given.kinds or ()] or [
        kind for kind in EVERYTHING if given.brokers == 3 or kind not in OF_THREE
    ]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="sparkonce-chaos-"))
    mode = "" if given.mode == MICRO_BATCH else f" MODE={given.mode}"
    state = "" if given.stateful == AGGREGATION else f' ARGS="--stateful {given.stateful}"'
    brokers = "" if given.brokers == 3 else f" BROKERS={given.brokers}"
    again = f"make chaos MINUTES={given.minutes:g} SEED={seed}{mode}{brokers}{state}"
    keep_logs = True
    try:
        report = run(
            Options(
                seed=seed,
                seconds=given.minutes * 60.0,
                folder=folder,
                brokers=given.brokers,
                mode=given.mode,
                stateful=given.stateful,
                kinds=kinds,
                rate=given.rate,
            ),
            lambda line: print(line, file=sys.stderr, flush=True),
        )
        keep_logs = bool(report.violations)
    except KeyboardInterrupt:
        keep_logs = False
        print(f"stopped; the same schedule: {again}", file=sys.stderr)
        return 130
    finally:
        if keep_logs:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            print(f"logs of the drivers: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    today = dt.datetime.now(dt.UTC).date().isoformat()
    line = json.dumps({"date": today, **report.to_dict()})
    print(line)
    if given.keep:
        RESULTS.mkdir(parents=True, exist_ok=True)
        with (RESULTS / f"{today}-{given.keep}.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
    for violation in report.violations:
        print(f"VIOLATION  {violation}\n           again: {again}", file=sys.stderr)
    return 1 if report.violations else 0


def _file_name(text: str) -> str:
    """Refuse a bad name before the run, not after an hour of it."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not letters, digits, dots and dashes")
    return text


if __name__ == "__main__":
    sys.exit(main())
