"""Registration of a run's processes by control group and pid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from workloads.client.api import Api, ExporterError

SLICE = "wattline.slice"
_OWN_CGROUP = Path("/proc/self/cgroup")
CGROUP = "WATTLINE_CGROUP"
_PID_NAMESPACE = Path("/proc/self/ns/pid")


def processes_body(*pids: int) -> dict[str, object]:
    """Return the request body that names processes, with the namespace of the pids."""
    try:
        return {"pids": list(pids), "pid_namespace": _PID_NAMESPACE.stat().st_ino}
    except OSError:
        return {"pids": list(pids)}


def run_cgroup(environ: Mapping[str, str]) -> str | None:
    """Return the control group to attribute to the run: that of the environment (`pod:UID`), else the own scope."""
    return environ.get(CGROUP) or own_scope_cgroup()


def own_scope_cgroup(cgroup_file: Path = _OWN_CGROUP) -> str | None:
    """Return the cgroup v2 path of this process if it is in a scope of `SLICE`, else None."""
    try:
        lines = cgroup_file.read_text().splitlines()
    except OSError:
        return None
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    names = paths[0].split("/") if paths else []
    return paths[0] if SLICE in names and names[-1].endswith(".scope") else None


class RunMembership:
    """Registration of processes with a run. Errors of type `tolerated` are passed to `log` and do not stop the job.

    A pod's pids are rejected, since they differ outside of it. If the control group is registered, the pids are not
    needed and the rejection is not logged.
    """

    def __init__(
        self, api: Api, run_id: str, group: str | None, tolerated: type[ExporterError], log: Callable[[str], None]
    ) -> None:
        self._api = api
        self._path = f"/runs/{run_id}/processes"
        self._tolerated = tolerated
        self._log = log
        self._by_group = False
        if group:
            try:
                api.post(self._path, {"cgroup": group})
                self._by_group = True
            except tolerated as error:
                log(f"cannot register control group {group}: {error}; the run is attributed by its pids")

    def add(self, pid: int, is_gone: Callable[[], bool] = lambda: False) -> None:
        try:
            self._api.post(self._path, processes_body(pid))
        except self._tolerated as error:
            if not self._by_group and not is_gone():
                self._log(f"cannot register process {pid} with the run: {error}")
