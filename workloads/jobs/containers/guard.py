"""Ends a container whose job was killed: `python -m workloads.jobs.containers.guard HOST STOP_SECONDS KEEP`.

On its stdin it reads the container's id, and `done` once the job has ended it itself. The end of stdin before that
comes with the job's own end, whatever that was.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from workloads.client.messages import log_message
from workloads.jobs.containers import container_engine, lifecycle


def main(arguments: Sequence[str]) -> int:
    host, stop_s, keep = arguments
    lines = sys.stdin.read().split()
    if not lines or lines[-1] == lifecycle.DONE:
        return 0
    container_id = lines[0]
    try:
        engine = container_engine.find_engine(host, os.environ)
    except container_engine.EngineError as error:
        log_message(f"container {container_id[:12]} is left behind: {error}")
        return 1
    log_message(f"the job was killed: stopping its container {container_id[:12]}")
    lifecycle.remove_container(lifecycle.CreatedContainer(engine, container_id, "", 0.0), int(stop_s), keep == "1")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
