"""Registration of a container's processes with the run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workloads.client.messages import log_message
from workloads.jobs.containers import lifecycle
from workloads.jobs.containers.lifecycle import CreatedContainer

_ROUNDING_S = 0.1


def start_as_part_of_run(container: CreatedContainer, register: Callable[..., str | None]) -> None:
    """Start it and register what it runs, by its cgroup and its first pid. Raises EngineError where it does not start.

    Says why, where neither is taken while it runs.
    """
    pid = lifecycle.start_container(container)
    if pid is None:  # it has ended already
        return
    cgroup = f"container:{container.id}"
    pids = [pid] if is_started_since(pid, container.since_boot_s) else []
    ways: list[dict[str, Any]] = [{"pids": pids, "cgroup": cgroup}, {"pids": pids}] if pids else [{"cgroup": cgroup}]
    for way in ways:
        refusal = register(**way)
        if refusal is None:
            return
    if lifecycle.is_running(container):
        log_message(f"the container's processes are not seen as part of the run: {refusal}")


def is_started_since(pid: int, since_boot_s: float, proc: Path = Path("/proc")) -> bool:
    """Return whether the pid's process started since then; in another pid namespace it is a different process."""
    try:
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") >= since_boot_s - _ROUNDING_S
