"""The control group that systemd made for this job alone: by it, children of a moment are counted, too.

`systemd-run --scope --slice=wattline.slice workloads run …`; any other group may hold others' processes as well.
"""

from __future__ import annotations

from pathlib import Path

SLICE = "wattline.slice"
_OWN = Path("/proc/self/cgroup")


def own(told: Path = _OWN) -> str | None:
    """Its path below the hierarchy (v2); None where this process is in no scope of that slice."""
    try:
        lines = told.read_text().splitlines()
    except OSError:
        return None
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    names = paths[0].split("/") if paths else []
    return paths[0] if SLICE in names and names[-1].endswith(".scope") else None
