"""Lookup of runs by their ids, among those in memory and the stored ones."""

from __future__ import annotations

from collections.abc import Mapping

from wattline.contract.api import MAX_ID_LENGTH
from wattline_exporter.runs.admission import RunStart
from wattline_exporter.runs.open_run import STORED, RunArchive, RunRecord
from wattline_exporter.sensors.readings import RunError


class RunLookup:
    """Runs in memory (`runs`), and older ones in the archive."""

    def __init__(self, runs: Mapping[str, RunRecord], archive: RunArchive) -> None:
        self._runs = runs
        self._archive = archive

    def get(self, run_id: str) -> RunRecord | None:
        if run_id not in self._runs and (stored := self._archive.run(run_id)):
            return STORED.validate_json(stored)
        return self._runs.get(run_id)

    def find(self, run_id: str) -> RunRecord:
        """Return the run. Raises RunError where there is none."""
        if run := self.get(run_id):
            return run
        latest = (
            ", ".join(sorted(self._runs, key=lambda name: -self._runs[name].started_at)[:5])
            or "none"
        )
        raise RunError(
            404, f"run_id: no run {run_id!r}; the latest runs are: {latest}; see GET /api/v1/runs"
        )

    def find_running(self, run_id: str) -> RunRecord:
        """Return the run, which is running. Raises RunError."""
        run = self.find(run_id)
        if not run.running:
            raise RunError(
                409, f"run_id: run {run_id!r} has ended ({run.outcome}); begin another run"
            )
        return run

    def begun_by(self, request: RunStart) -> RunRecord | None:
        """Return the run that an equal request began. Raises RunError where another one has its
        id.
        """
        run = self.get(request.run_id) if request.run_id is not None else None
        if run and run.request != request.text:
            raise RunError(
                409,
                f"run_id: {request.run_id!r} is already used by another run; choose another run ID",
            )
        return run

    def unused_id(self, run_id: str) -> str:
        """Return the run id, with a number from 2 on if earlier runs have it, such as those of a
        requeued job.
        """
        number, unused = 1, run_id
        while self.get(unused):
            number += 1
            unused = f"{run_id[: MAX_ID_LENGTH - len(str(number)) - 1]}.{number}"
        return unused
