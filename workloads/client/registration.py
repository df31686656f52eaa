"""By what the exporter knows a run's processes: a control group where one is named, and numbers."""

from __future__ import annotations

from collections.abc import Callable

from workloads.client import systemd_scope as scope
from workloads.client.api import Api, ExporterError


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
            self._api.post(self._path, scope.pids(pid))
        except self._survived as error:
            if not self._by_group and not is_gone():
                self._say(f"process {pid} is not seen as part of the run: {error}")
