"""The system under test: the pipeline of the integration tests, with its events on stderr."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time

from tests.integration.pipeline_main import main

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
    sys.exit(main())
