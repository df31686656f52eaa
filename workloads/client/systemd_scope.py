"""The control group that systemd made for this job alone: by it, children of a moment are counted, too.

`systemd-run --scope --slice=wattline.slice workloads run …`; any other group may hold others' processes as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SLICE = "wattline.slice"
_OWN = Path("/proc/self/cgroup")


CGROUP = "WATTLINE_CGROUP"
_PID_NAMESPACE = Path("/proc/self/ns/pid")


def pids(*of: int) -> dict[str, object]:
    """The body that names processes: in which namespace the numbers are meant is part of them."""
    try:
        return {"pids": list(of), "pid_namespace": _PID_NAMESPACE.stat().st_ino}
    except OSError:
        return {"pids": list(of)}


def named(environ: Mapping[str, str]) -> str | None:
    """What the exporter is to count as the run: as the environment says (`pod:UID`), else a scope of its own."""
    return environ.get(CGROUP) or own()


def own(told: Path = _OWN) -> str | None:
    """Its path below the hierarchy (v2); None where this process is in no scope of that slice."""
    try:
        lines = told.read_text().splitlines()
    except OSError:
        return None
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    names = paths[0].split("/") if paths else []
    return paths[0] if SLICE in names and names[-1].endswith(".scope") else None
