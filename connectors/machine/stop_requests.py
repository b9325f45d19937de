"""The signals that ask a process to stop."""

from __future__ import annotations

import signal


def stop_requests() -> list[signal.Signals]:
    """Return ctrl-C, SIGTERM, and SIGHUP, which comes when the terminal is closed.

    Under `nohup` a process ignores SIGHUP, and so it does here. A handler of the user's stays too:
    services read their settings again at this signal.
    """
    asks = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        asks.append(signal.SIGHUP)
    return asks
