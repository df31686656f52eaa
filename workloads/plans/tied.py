"""`python -m workloads.plans.tied PID COMMAND...`: the command, which gets SIGTERM when its parent PID ends.

A plan's runner that is killed cannot end its run, and the run must not go on without the cap that it is labelled with.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>; it outlives execve


def main(arguments: list[str]) -> None:
    parent, *command = arguments
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == int(parent):  # else it has ended before it could be watched
        os.execvp(command[0], command)  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
