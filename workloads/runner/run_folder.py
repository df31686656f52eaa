"""The folder of one run: `events.jsonl` while it goes on, `metrics.yml` once it has ended. Nothing is overwritten."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from exporter.contract.record import METRICS_FILE
from exporter.contract.run import Outcome, Run
from workloads.client.messages import say
from workloads.client.recorder import Recorder
from workloads.runner.streams import NO_ROOM

_SUMMED = ("gpu", "cpu", "dram")


class RunFolderError(Exception):
    """One line: the cause and the next step."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path
    _recorder: Recorder

    @classmethod
    def make(cls, out: Path, run_id: str) -> RunFolder:
        """Raises RunFolderError."""
        path = out.absolute() / run_id
        try:
            path.mkdir(parents=True)
        except FileExistsError as error:
            raise RunFolderError(
                f"{path} is there already and is left as it is; give another --out or --run-id"
            ) from error
        except OSError as error:
            raise RunFolderError(f"{path} cannot be made: {error.strerror}; give another --out") from error
        return cls(path, Recorder(path))

    def discard(self) -> None:
        """Where the run did not begin, so that the same may be tried again."""
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def start(self, run: Run, command: Sequence[str], config: Mapping[str, Any]) -> None:
        self._recorder.write(
            "start",
            run_id=run.run_id,
            workload=run.workload,
            labels=run.labels,
            gpus=[gpu.uuid for gpu in run.gpus],
            command=list(command),
            config=_plain(config),
        )

    def end(self, run: Run | None, outcome: Outcome, exit_code: int, results: Mapping[str, float]) -> None:
        """`run` is None where the exporter could not be told; then there is no `metrics.yml`."""
        self._recorder.write(
            "end",
            outcome=outcome,
            exit_code=exit_code,
            duration_seconds=run.duration_seconds if run else None,
            work=run.work if run else {},
            results=run.results if run else dict(results),
        )
        if run is not None:
            self._write_metrics({"exit_code": exit_code, **_metrics(run)})

    def _write_metrics(self, metrics: Mapping[str, Any]) -> None:
        path = self.path / METRICS_FILE
        try:
            with path.open("x", encoding="utf-8") as file:
                yaml.safe_dump(dict(metrics), file, sort_keys=False)
        except OSError as error:
            say(f"{path} cannot be written: {error.strerror}; the exporter has the run all the same")
            if error.errno in NO_ROOM:  # half of an account is none
                path.unlink(missing_ok=True)


def _metrics(run: Run) -> dict[str, Any]:
    """The exporter's own answer, and the joules of each component over its devices."""
    whole = run.model_dump(mode="json", exclude={"state"}, exclude_none=True)
    totals = {name: sum(run.energy_joules[name].values()) for name in _SUMMED if name in run.energy_joules}
    return {"total_energy_joules": totals, **whole}


def _plain(value: object) -> Any:
    """As JSON has it; a path, an infinity and whatever else it has not as text."""
    match value:
        case Mapping():
            return {str(name): _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
    return str(value)
