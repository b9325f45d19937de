"""Makes a process end with its parent, however the parent ends."""

from __future__ import annotations

import os
import threading


def live_as_long_as_parent() -> None:
    """Exit at once when standard input ends: then the process at its other end is gone."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
