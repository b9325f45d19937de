"""A driver that only decides: `python -m tests.unit.log_writer URL OPTIONS` appends until killed.

It says on its output what it believes: ``epoch N`` when its Fence is durable, ``decided K`` when a
decision is. A newer run ends it with exit code 3, a log that cannot be written with 4.
"""

import json
import sys

import connectors  # noqa: F401 - it knows addresses of HDFS
from tests.unit.samples import decision
from transactions.decision_log import DecisionLog
from transactions.errors import DecisionLogError, FencedError
from transactions.log_location import backend_for

FENCED = 3
UNWRITTEN = 4


def main(url: str, options: str) -> None:
    log = DecisionLog.open(
        backend_for(url, json.loads(options)), application_id="app", identity={"sinks": "out"}
    )
    print(f"epoch {log.run_epoch}", flush=True)
    last = log.state.decision
    number = 0 if last is None else last.checkpoint_id + 1
    while True:
        log.decide(decision(number))
        print(f"decided {number}", flush=True)
        log.compact_if_due()
        log.prepare_next()
        number += 1


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except FencedError:
        sys.exit(FENCED)
    except DecisionLogError as error:
        print(error, flush=True)
        sys.exit(UNWRITTEN)
