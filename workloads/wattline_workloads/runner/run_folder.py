"""Folder of a run.

It has `events.jsonl` and, after the end, `metrics.yml`. No file is overwritten.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from wattline.client.messages import DISK_FULL_ERRNOS, log_message
from wattline.client.recorder import Recorder
from wattline.contract.api import Outcome
from wattline.contract.run import Run
from wattline.contract.run_files import METRICS_FILE


class RunFolderError(Exception):
    """Error with a one-line message: the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path
    _recorder: Recorder

    @classmethod
    def create(cls, out: Path, run_id: str) -> RunFolder:
        """Create the folder. Raises RunFolderError."""
        path = out.absolute() / run_id
        try:
            path.mkdir(parents=True)
        except FileExistsError as error:
            raise RunFolderError(
                f"cannot create {path}: it already exists; set another --out or --run-id"
            ) from error
        except OSError as error:
            raise RunFolderError(
                f"cannot create {path}: {error.strerror}; set another --out"
            ) from error
        return cls(path, Recorder(path))

    def discard(self) -> None:
        """Remove the folder of a run that did not start, so that the same command can be
        repeated.
        """
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def start(self, run: Run, command: Sequence[str], config: Mapping[str, Any]) -> None:
        self._recorder.write(
            "start",
            run_id=run.run_id,
            workload=run.workload,
            labels=dict(run.labels),
            gpus=[gpu.uuid for gpu in run.gpus],
            command=list(command),
            config=_json_value(config),
        )

    def end(
        self, run: Run | None, outcome: Outcome, exit_code: int, results: Mapping[str, float]
    ) -> None:
        """Write the last event and `metrics.yml`. `run` is None if the exporter could not be
        reached.
        """
        self._recorder.write(
            "end",
            outcome=outcome,
            exit_code=exit_code,
            duration_seconds=run.duration_s if run else None,
            work=dict(run.work) if run else {},
            results=dict(run.results) if run else dict(results),
        )
        if run is not None:
            self._write_metrics({"exit_code": exit_code, **metrics_document(run)})

    def _write_metrics(self, metrics: Mapping[str, Any]) -> None:
        path = self.path / METRICS_FILE
        try:
            with path.open("x", encoding="utf-8") as file:
                yaml.safe_dump(dict(metrics), file, sort_keys=False)
        except OSError as error:
            log_message(f"cannot write {path}: {error.strerror}; the exporter still has the run")
            if error.errno in DISK_FULL_ERRNOS:  # a truncated file would be misleading
                path.unlink(missing_ok=True)


def metrics_document(run: Run) -> dict[str, Any]:
    """Return the exporter's response with the known joules of each component, over its devices."""
    energies = {name: run.known_energy(name).value for name in run.components}
    totals = {name: joules for name, joules in energies.items() if joules is not None}
    whole = {name: value for name, value in run.to_json().items() if name != "state"}
    return {"total_energy_joules": totals, **_without_null(whole)}


def _without_null(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document, and the objects in its lists, without fields that are null."""
    return {
        name: [_without_null(one) if isinstance(one, dict) else one for one in value]
        if isinstance(value, list)
        else value
        for name, value in document.items()
        if value is not None
    }


def _json_value(value: object) -> Any:
    """Convert to types of JSON; paths, infinities and other values become text."""
    match value:
        case Mapping():
            return {str(name): _json_value(one) for name, one in value.items()}
        case list() | tuple():
            return [_json_value(one) for one in value]
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
    return str(value)
