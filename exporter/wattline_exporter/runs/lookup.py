"""Lookup of runs by their ids, among those in memory and the stored ones."""

from __future__ import annotations

import json
from collections.abc import Mapping

from wattline.contract.api import MAX_ID_LENGTH
from wattline.contract.run import Run
from wattline_exporter.runs.admission import RunStart
from wattline_exporter.runs.run_record import RunArchive, RunRecord
from wattline_exporter.sensors.readings import RunError
from wattline_exporter.storage.saved_state import StoredRun


class RunLookup:
    """Records of runs in memory (`runs`), and older runs in the archive."""

    def __init__(self, runs: Mapping[str, RunRecord], archive: RunArchive) -> None:
        self._runs = runs
        self._archive = archive

    def _final(self, run_id: str) -> StoredRun | None:
        stored = self._archive.run(run_id)
        return stored if stored and stored.is_final else None

    def find(self, run_id: str) -> RunRecord | Run:
        """Return the record of a run, or a final run. Raises RunError where there is none."""
        if run := self._runs.get(run_id):
            return run
        if stored := self._final(run_id):
            return Run.parse(json.loads(stored.body))
        latest = (
            ", ".join(sorted(self._runs, key=lambda name: -self._runs[name].started_at)[:5])
            or "none"
        )
        raise RunError(
            404, f"run_id: no run {run_id!r}; the latest runs are: {latest}; see GET /api/v1/runs"
        )

    def find_running(self, run_id: str) -> RunRecord:
        """Return the record of a run, which is running. Raises RunError."""
        run = self.find(run_id)
        if isinstance(run, RunRecord) and run.running:
            return run
        raise RunError(409, f"run_id: run {run_id!r} has ended ({run.outcome}); begin another run")

    def begun_by(self, request: RunStart) -> RunRecord | Run | None:
        """Return the run that an equal request began. Raises RunError where another one has its
        id.
        """
        if request.run_id is None:
            return None
        known = self._runs.get(request.run_id) or self._final(request.run_id)
        if known is None:
            return None
        if known.request != request.digest:
            raise RunError(
                409,
                f"run_id: {request.run_id!r} is already used by another run; choose another run ID",
            )
        return self.find(request.run_id)

    def unused_id(self, run_id: str) -> str:
        """Return the run id, with a number from 2 on if earlier runs have it, such as those of a
        requeued job.
        """
        number = 1
        unused = run_id
        while unused in self._runs or self._final(unused):
            number += 1
            unused = f"{run_id[: MAX_ID_LENGTH - len(str(number)) - 1]}.{number}"
        return unused
