"""By what the exporter knows a run's processes: a control group where one is named, and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from workloads.client.api import Api, ExporterError

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


class Membership:
    """`survived` are the errors that are said, by `say`, and survived.

    In a pod numbers are refused, since they are others outside of it; where the control group is known they are not
    needed, and nothing is said.
    """

    def __init__(
        self, api: Api, run_id: str, group: str | None, survived: type[ExporterError], say: Callable[[str], None]
    ) -> None:
        self._api = api
        self._path = f"/runs/{run_id}/processes"
        self._survived = survived
        self._say = say
        self._by_group = False
        if group:
            try:
                api.post(self._path, {"cgroup": group})
                self._by_group = True
            except survived as error:
                say(f"the run is known by its processes, not by its control group: {error}")

    def add(self, pid: int, is_gone: Callable[[], bool] = lambda: False) -> None:
        try:
            self._api.post(self._path, pids(pid))
        except self._survived as error:
            if not self._by_group and not is_gone():
                self._say(f"process {pid} is not seen as part of the run: {error}")
