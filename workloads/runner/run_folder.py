"""Records of a run: its folder, and the summary on stderr after its end.

The folder has `events.jsonl` and, after the end, `metrics.yml`. No file is overwritten.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from exporter.contract.run import METRICS_FILE, NO_GPU_FOUND, Outcome, RunView
from exporter.contract.work import SHORTEST_PHASE_S, is_useful, phases_of_work, primary_first, unit_of_one
from workloads.client.messages import DISK_FULL_ERRNOS, log_message
from workloads.client.recorder import Recorder

_SUMMED = ("gpu", "cpu", "dram")
_PERCENTILE = re.compile(r"_p\d\d$")
_MOST_SHOWN = 6


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
            raise RunFolderError(f"cannot create {path}: it already exists; set another --out or --run-id") from error
        except OSError as error:
            raise RunFolderError(f"cannot create {path}: {error.strerror}; set another --out") from error
        return cls(path, Recorder(path))

    def discard(self) -> None:
        """Remove the folder of a run that did not start, so that the same command can be repeated."""
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def start(self, run: RunView, command: Sequence[str], config: Mapping[str, Any]) -> None:
        self._recorder.write(
            "start",
            run_id=run.run_id,
            workload=run.workload,
            labels=run.labels,
            gpus=[gpu.uuid for gpu in run.gpus],
            command=list(command),
            config=_json_value(config),
        )

    def end(self, run: RunView | None, outcome: Outcome, exit_code: int, results: Mapping[str, float]) -> None:
        """Write the last event and `metrics.yml`. `run` is None if the exporter could not be reached."""
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
            log_message(f"cannot write {path}: {error.strerror}; the exporter still has the run")
            if error.errno in DISK_FULL_ERRNOS:  # a truncated file would be misleading
                path.unlink(missing_ok=True)


def _metrics(run: RunView) -> dict[str, Any]:
    """Return the exporter's response with the joules of each component summed over its devices."""
    whole = run.model_dump(mode="json", exclude={"state"}, exclude_none=True)
    totals = {name: sum(run.energy_joules[name].values()) for name in _SUMMED if name in run.energy_joules}
    return {"total_energy_joules": totals, **whole}


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


def log_summary(run: RunView, outcome: Outcome, source: str | None) -> None:
    for line in summary_lines(run, outcome, source):
        log_message(line)


def summary_lines(run: RunView, outcome: Outcome, source: str | None) -> Iterator[str]:
    """Yield the lines of the summary; `source` is the analyzer's `--source`, where it is needed."""
    yield from run.notes
    yield from _results(run)
    if run.energy_joules:
        hint = f"analyzer report --run-id {run.run_id}" + (f" --source {source}" if source else "")
    else:
        hint = "no energy was measured"
        if NO_GPU_FOUND not in run.notes:
            hint += "; exporter check lists what this machine can measure"
    if run.outcome != outcome:
        yield f"the command ended as {outcome}, but the run had already been ended as {run.outcome}"
    yield f"run {run.run_id} {run.outcome} in {run.duration_seconds:.1f} s: {hint}"


def _results(run: RunView) -> Iterator[str]:
    """Yield the job's results without percentiles, and the energy per unit of work."""
    shown = {name: value for name, value in run.results.items() if not _PERCENTILE.search(name)}
    if shown:
        yield ", ".join(f"{name} {value:.4g}" for name, value in list(shown.items())[:_MOST_SHOWN])
    if energies := list(_energies_per_unit(run)):
        yield ", or ".join(energies)


def _energies_per_unit(run: RunView) -> Iterator[str]:
    """Yield the energy per unit, the primary one first, as `exporter.contract.work` defines it."""
    component = next((name for name in _SUMMED if name in run.energy_joules), None)
    if component is None:
        return
    device = {"gpu": "GPUs", "cpu": "CPUs", "dram": "memory"}[component]
    whole_j = math.fsum(run.energy_joules[component].values())
    shares_j = run.attributed_energy_joules.get(component, {})
    share_j = whole_j - math.fsum(run.energy_joules[component][one] - joules for one, joules in shares_j.items())
    least_s = SHORTEST_PHASE_S if component == "gpu" else 0.0
    measured_s = {
        phase.name: phase.duration_seconds
        for phase in run.phases
        if component in phase.energy_joules and phase.duration_seconds >= least_s
    }
    for unit in primary_first(unit for unit, amount in run.work.items() if amount > 0 and is_useful(unit)):
        amount, name = run.work[unit], unit_of_one(unit)
        if shares_j:
            yield (
                f"{share_j / amount:.4g} J per {name} over the whole run, attributed to it, since others used its "
                f"{device} as well ({whole_j / amount:.4g} J of the whole {device})"
            )
            continue
        done_in = {phase.name: phase.work[unit] for phase in run.phases if unit in phase.work}
        names = phases_of_work(amount, done_in, measured_s, run.duration_seconds)
        joules = math.fsum(phase.energy_joules[component] for phase in run.phases if phase.name in names)
        where = f"during the phase {' and '.join(names)}" if names else "over the whole run"
        yield f"{(joules if names else whole_j) / amount:.4g} J of the {device} per {name} {where}"
