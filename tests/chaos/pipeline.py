"""The system under test: the integration tests' pipeline of a mode, its events on stderr.

The first argument is the mode, the others are the pipeline's own options.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import time

from connectors.options.table import CONTINUOUS, MICRO_BATCH

_MAIN = {
    MICRO_BATCH: "tests.integration.pipeline_main",
    CONTINUOUS: "tests.integration.continuous_main",
}
_LOOK_S = 1.0


def _end_with(parent: int) -> None:
    """End when the runner is gone without a word: it was killed and could not clean up."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(70)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.WARNING)
    for name in ("sparkonce", "transactions", "connectors"):
        logging.getLogger(name).setLevel(logging.INFO)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    sys.exit(importlib.import_module(_MAIN[sys.argv.pop(1)]).main())
