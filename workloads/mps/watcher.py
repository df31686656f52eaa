"""Watcher process that stops an MPS daemon when its runner is killed.

`workloads.mps.session` starts it with the mark and the environment of the daemon. It waits for the end of its standard
input, which the runner keeps open.
"""

from __future__ import annotations

import os
import signal
import sys

from workloads.mps.daemon import MpsDaemon

DISMISSED = b"done"
_STOP_WITHIN_S = 5.0


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):  # it ends only after the runner
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() != DISMISSED:
        MpsDaemon(dict(os.environ), sys.argv[1]).stop(_STOP_WITHIN_S)


if __name__ == "__main__":
    main()
