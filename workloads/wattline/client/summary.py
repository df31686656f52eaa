"""Summary of an ended run, from the exporter's response to its end.

Only the standard library is imported, since it also runs inside users' training processes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from wattline.client.component_energy import DEVICES, ComponentEnergy, energies_by_component
from wattline.client.messages import log_message
from wattline.figures import (
    Figure,
    joules_errors_text,
    joules_text,
    proportional_text,
    small_energy_text,
    sum_of_one_job,
)

_STATISTIC = re.compile(r"_(p\d\d|mean)$")
_PROBLEM = re.compile(r"_failed$|^error_ratio$|_without_")
"""Names of results that are shown unless they are 0."""
_MOST_SHOWN, _SHOWN_PER_LINE = 6, 3
_LONGEST_LINE = 140
"""Longest line of the energy of one component, with all figures that are derived from it."""
NO_GPU_FOUND = "no process of the run was found on a GPU"
"""Start of a note that also explains a run without energy; `wattline.contract.api` defines it."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """An ended run; `parse` reads the JSON of the run API (`wattline.contract.run.RunView`)."""

    run_id: str
    outcome: str
    duration_s: float
    energies: Mapping[str, ComponentEnergy]
    grams: float | None
    """Emissions in g CO2eq by the average intensity, by the marginal one where only that is known;
    else None.
    """
    results: Mapping[str, float]
    per_unit: tuple[Mapping[str, Any], ...]
    """`energy_per_unit` of the response."""
    notes: tuple[str, ...]
    simulated: bool

    @classmethod
    def parse(cls, run: Mapping[str, Any]) -> EndedRun:
        """Return the run. Raises KeyError, TypeError, ValueError or AttributeError for another
        document.
        """
        energies = energies_by_component(run)
        return cls(
            run["run_id"],
            run["outcome"],
            float(run["duration_seconds"]),
            energies,
            _grams(run.get("emissions_grams", ()), energies),
            run["results"],
            tuple(run.get("energy_per_unit", ())),
            tuple(run["notes"]),
            any(gpu["name"].startswith("SIMULATED") for gpu in run["gpus"]),
        )

    @property
    def energy_j(self) -> Figure:
        """Sum over the components, unknown if none was measured."""
        return sum_of_one_job(one.energy_j for one in self.energies.values())


def _grams(emissions: Any, energies: Mapping[str, ComponentEnergy]) -> float | None:
    """Return the emissions of all components; None where one of them has none, since the sum would
    lack it.
    """
    for basis in ("average", "marginal"):
        parts = [one for one in emissions if one["basis"] == basis]
        if energies and energies.keys() <= {one["component"] for one in parts}:
            return math.fsum(one["grams"] for one in parts if one["component"] in energies)
    return None


@dataclass(frozen=True, slots=True)
class EnergySoFar:
    """Energy of a run up to now, `str(energy)` is `80.4 ± 1.4 J`, rounded to all errors
    together.
    """

    joules: float
    """Sum over the whole GPUs, CPUs and memory of the run."""
    uncertainty_joules: float | None
    """Half-width of its 95 % confidence interval, None if it is unknown."""
    total_uncertainty_joules: float | None = None
    """Half-width with the accuracy of the GPUs' sensors, None if it is unknown."""
    emissions_grams: float | None = None
    """Emissions of `joules` in g CO2eq, None where the carbon intensity is unknown."""
    duration_seconds: float | None = None
    """Time since the start of the run."""

    @classmethod
    def of(cls, ended: EndedRun) -> EnergySoFar | None:
        """Return the energy of a whole run, None if none was measured."""
        return _energy_so_far(ended.energies, ended.grams, ended.duration_s)

    def __str__(self) -> str:
        half_j = self.total_uncertainty_joules or self.uncertainty_joules
        return joules_text(Figure(self.joules, half_j))

    @classmethod
    def parse(cls, run: Mapping[str, Any]) -> EnergySoFar | None:
        """Return the energy of a run of the run API, None if nothing is measured yet."""
        energies = energies_by_component(run)
        grams = _grams(run.get("emissions_grams", ()), energies)
        return _energy_so_far(energies, grams, run.get("duration_seconds"))

    def metrics(self) -> dict[str, float]:
        """Return the known figures by name with unit."""
        half_j = self.total_uncertainty_joules or self.uncertainty_joules
        return _metrics(self.joules, half_j, self.emissions_grams, self.duration_seconds)


def _energy_so_far(
    energies: Mapping[str, ComponentEnergy], grams: float | None, duration_s: float | None
) -> EnergySoFar | None:
    """Return the energy of all components, None if there is none."""
    energy_j = sum_of_one_job(one.energy_j for one in energies.values())
    if energy_j.value is None:
        return None
    return EnergySoFar(
        energy_j.value, energy_j.half_width, energy_j.total_half_width, grams, duration_s
    )


@dataclass(frozen=True, slots=True)
class RunResult:
    """Figures of a run after its end; None where they are unknown, also for a run that another
    program ends.
    """

    run_id: str | None
    outcome: str | None = None
    duration_seconds: float | None = None
    energy_joules: float | None = None
    """Energy of the whole GPUs, CPUs and memory of the run."""
    uncertainty_joules: float | None = None
    """Half-width of the 95 % confidence interval of `energy_joules`."""
    emissions_grams: float | None = None
    """Emissions of `energy_joules` in g CO2eq."""
    joules_per_unit: Mapping[str, float] = field(default_factory=dict)
    """Energy per unit of work, by unit, the primary one first; on shared devices the part
    attributed to the run.
    """
    total_uncertainty_joules: float | None = None
    """`uncertainty_joules` with the accuracy of the GPUs' sensors."""
    unit_names: Mapping[str, str] = field(default_factory=dict)
    """Words for one of each unit of `joules_per_unit`, such as `generated token`."""

    @classmethod
    def of(cls, run_id: str | None, ended: EndedRun | None) -> RunResult:
        if ended is None:
            return cls(run_id)
        energy_j = ended.energy_j
        return cls(
            ended.run_id,
            ended.outcome,
            ended.duration_s,
            energy_j.value,
            energy_j.half_width,
            ended.grams,
            {str(one["unit"]): float(one["joules"]) for one in ended.per_unit},
            energy_j.total_half_width,
            {str(one["unit"]): str(one["name"]) for one in ended.per_unit},
        )

    def metrics(self) -> dict[str, float]:
        """Return the known figures by name with unit, for trackers:
        `mlflow.log_metrics(result.metrics())`.

        Empty if nothing was measured.
        """
        if self.energy_joules is None:
            return {}
        half_j = self.total_uncertainty_joules or self.uncertainty_joules
        known = _metrics(self.energy_joules, half_j, self.emissions_grams, self.duration_seconds)
        names = {
            unit: self.unit_names.get(unit, unit).replace(" ", "_") for unit in self.joules_per_unit
        }
        return known | {
            f"joules_per_{names[unit]}": joules for unit, joules in self.joules_per_unit.items()
        }


def _metrics(
    energy_j: float, half_j: float | None, grams: float | None, duration_s: float | None
) -> dict[str, float]:
    values = {
        "energy_joules": energy_j,
        "energy_uncertainty_joules": half_j,
        "mean_power_watts": energy_j / duration_s if duration_s else None,
        "emissions_grams": grams,
        "duration_seconds": duration_s,
    }
    return {name: value for name, value in values.items() if value is not None}


def outcome_of(error: BaseException | None) -> str:
    """Return the outcome of a run that `error` ended, None without an exception."""
    if error is None or (isinstance(error, SystemExit) and error.code in {None, 0}):
        return "ok"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


def log_summary(
    answer: Mapping[str, Any], outcome: str, source: str | None, *, quiet: bool = False
) -> EndedRun | None:
    """Log the summary of the exporter's response to the end of a run; return the run, None if it
    cannot be read.

    With `quiet` only the notes are logged.
    """
    try:
        run = EndedRun.parse(answer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log_message(
            f"cannot read the exporter's response: {error!r}; install the same version of wattline "
            "for both"
        )
        return None
    for line in run.notes if quiet else summary_lines(run, outcome, source):
        log_message(line)
    return run


def summary_lines(run: EndedRun, outcome: str, source: str | None) -> Iterator[str]:
    """Yield notes, results and energy; `source` is the analyzer's `--source`, where it is
    needed.
    """
    yield from run.notes
    yield from _results(run)
    if run.outcome != outcome:
        yield f"the command ended as {outcome}, but the run had already been ended as {run.outcome}"
    first = f"run {run.run_id} {run.outcome} in {run.duration_s:.1f} s: "
    if not run.energies:
        is_explained = any(note.startswith(NO_GPU_FOUND) for note in run.notes)
        hint = "" if is_explained else "; exporter check lists what this machine can measure"
        yield f"{first}no energy was measured{hint}"
        return
    report = f"wattline report {run.run_id}" + (f" --source {source}" if source else "")
    energies = [_energy_text(run, name) for name in run.energies]
    derived = [*([] if run.grams is None else [f"{run.grams:.3g} g CO2eq"]), *_primary(run)]
    line = f"{first}{', '.join([*energies, *derived])}; {report}"
    if len(energies) == 1 and len(line) <= _LONGEST_LINE:
        yield line
        return
    yield f"{first}{energies[0]}"
    if len(energies) > 1:
        yield ", ".join(energies[1:])
    yield "; ".join(filter(None, [", ".join(derived), report]))


def _energy_text(run: EndedRun, component: str) -> str:
    energy = run.energies[component]
    energy_j = energy.energy_j
    devices = DEVICES[component]
    if component == "gpu" and run.simulated:
        devices = f"SIMULATED {devices}"
    mean = ""
    if run.duration_s > 0:
        mean = f"mean {proportional_text(energy_j.number / run.duration_s, energy_j)} W"
    share = "" if energy.attributed_j is None else f"{energy.share_text} attributed to this run"
    details = "; ".join(filter(None, (joules_errors_text(energy_j), mean, share)))
    whole = f"{joules_text(energy_j)} of the {devices}"
    return whole + (f" ({details})" if details else "")


def _each(run: EndedRun, one: Mapping[str, Any], key: str = "joules") -> str:
    """Return an energy per unit, with as many digits as the energy of its devices has."""
    energy = run.energies.get(one["component"])
    return small_energy_text(one[key], energy.energy_j if energy else None)


def _results(run: EndedRun) -> Iterator[str]:
    """Yield the job's results without percentiles and means, and the energy per unit of work."""
    shown = {
        name: value
        for name, value in run.results.items()
        if not _STATISTIC.search(name) and (value or not _PROBLEM.search(name))
    }
    texts = [f"{name} {value:.4g}" for name, value in list(shown.items())[:_MOST_SHOWN]]
    for first in range(0, len(texts), _SHOWN_PER_LINE):
        yield ", ".join(texts[first : first + _SHOWN_PER_LINE])
    energies = list(_energies_per_unit(run))
    if len(energies) > 1 or any(
        one["phases"] or one["whole_device_joules"] is not None for one in run.per_unit
    ):
        yield from energies


def _primary(run: EndedRun) -> list[str]:
    """Return the energy per unit of the primary unit, if there is one, for the last line."""
    if not run.per_unit:
        return []
    first = run.per_unit[0]
    share = " attributed to this run" if first["whole_device_joules"] is not None else ""
    phases = f" during the phase {' and '.join(first['phases'])}" if first["phases"] else ""
    return [f"{_each(run, first)} per {first['name']}{phases}{share}"]


def _energies_per_unit(run: EndedRun) -> Iterator[str]:
    """Yield the exporter's energy per unit, the primary one first."""
    for one in run.per_unit:
        name, devices = one["name"], DEVICES[one["component"]]
        if one["whole_device_joules"] is not None:
            whole = _each(run, one, "whole_device_joules")
            yield (
                f"{_each(run, one)} per {name} over the whole run, attributed to it, since others "
                "used its "
                f"{devices} as well ({whole} of the whole {devices})"
            )
        else:
            where = (
                f"during the phase {' and '.join(one['phases'])}"
                if one["phases"]
                else "over the whole run"
            )
            yield f"{_each(run, one)} of the {devices} per {name} {where}"
