"""The folder of one run: `events.jsonl` while it goes on, `metrics.yml` once it has ended. Nothing is overwritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from exporter.contract.record import METRICS_FILE
from exporter.contract.run import Outcome, Run
from workloads.recorder import Recorder

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

    def start(self, run: Run, command: Sequence[str], config: Mapping[str, Any]) -> None:
        self._recorder.write(
            "start",
            run_id=run.run_id,
            workload=run.workload,
            labels=run.labels,
            gpus=[gpu.uuid for gpu in run.gpus],
            command=list(command),
            config={name: value if _is_plain(value) else str(value) for name, value in config.items()},
        )

    def end(self, run: Run | None, outcome: Outcome, exit_code: int, results: Mapping[str, float]) -> None:
        """`run` is None where the exporter could not be told."""
        duration_s = run.duration_seconds if run else None
        work = run.work if run else {}
        self._recorder.write(
            "end",
            outcome=outcome,
            exit_code=exit_code,
            duration_seconds=duration_s,
            work=work,
            results=run.results if run else dict(results),
        )
        if run is not None:
            metrics = {"exit_code": exit_code, **_metrics(run)}
            (self.path / METRICS_FILE).write_text(yaml.safe_dump(metrics, sort_keys=False), encoding="utf-8")


def _metrics(run: Run) -> dict[str, Any]:
    """The exporter's own answer, and the joules of each component over its devices."""
    whole = run.model_dump(mode="json", exclude={"state"}, exclude_none=True)
    totals = {name: sum(run.energy_joules[name].values()) for name in _SUMMED if name in run.energy_joules}
    return {"total_energy_joules": totals, **whole}


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
