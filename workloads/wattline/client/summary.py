"""Summary of an ended run, from the exporter's response to its end.

Only the standard library is imported, since it also runs inside users' training processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from wattline.client.messages import log_message
from wattline.contract.api import NO_GPU_FOUND
from wattline.contract.run import Run, RunFormatError, UnitEnergy
from wattline.figures import (
    Figure,
    energy_of_one_text,
    joules_errors_text,
    joules_text,
    mass_text,
    mean_power_text,
    part_text,
    short_text,
)

_STATISTIC = re.compile(r"_(p\d\d|mean)$")
_PROBLEM = re.compile(r"_failed$|^error_ratio$|_without_")
"""Names of results that are shown unless they are 0."""
_MOST_SHOWN = 6
_SHOWN_PER_LINE = 3
_LONGEST_LINE = 140
"""Longest line of the energy of one component, with all figures that are derived from it."""
DEVICES = {"gpu": "GPUs", "cpu": "CPUs", "dram": "memory"}
"""Words for the devices of each component."""


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
    def of(cls, run: Run) -> EnergySoFar | None:
        """Return the energy of a whole run; None if nothing is measured yet, or not all of it."""
        energy = run.known_energy()
        if energy.value is None:
            return None
        return cls(
            energy.value,
            energy.half_width,
            energy.total_half_width,
            run.emissions_g.complete().value,
            run.duration_s,
        )

    def __str__(self) -> str:
        return joules_text(self._energy)

    def metrics(self) -> dict[str, float]:
        """Return the known figures by name with unit."""
        return _metrics(self._energy, self.emissions_grams, self.duration_seconds)

    @property
    def _energy(self) -> Figure:
        return _with_all_errors(self.joules, self.uncertainty_joules, self.total_uncertainty_joules)


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
    per_unit_j: Mapping[str, Figure] = field(default_factory=dict)
    """Energy per unit of work in joules, by unit, the primary one first; on shared devices the part
    attributed to the run, whose half-width is unknown.
    """
    total_uncertainty_joules: float | None = None
    """`uncertainty_joules` with the accuracy of the GPUs' sensors."""
    unit_names: Mapping[str, str] = field(default_factory=dict)
    """Words for one of each unit of `per_unit_j`, such as `generated token`."""
    emissions_uncertainty_grams: float | None = None
    """Half-width of the 95 % confidence interval of `emissions_grams`, by that of the energy."""

    @classmethod
    def of(cls, run_id: str | None, run: Run | None) -> RunResult:
        if run is None:
            return cls(run_id)
        energy = run.known_energy()
        per_unit = run.energy_per_unit()
        emissions = run.emissions_g.complete()
        return cls(
            run.run_id,
            run.outcome,
            run.duration_s,
            energy.value,
            energy.half_width,
            emissions.value,
            {one.unit: one.energy for one in per_unit},
            energy.total_half_width,
            {one.unit: one.name for one in per_unit},
            emissions.half_width,
        )

    @property
    def joules_per_unit(self) -> dict[str, float]:
        """Values of `per_unit_j`."""
        return {unit: energy.number for unit, energy in self.per_unit_j.items()}

    @property
    def energy_j(self) -> Figure | None:
        """Energy in joules with the half-width of all errors together; None where it is
        unknown.
        """
        if self.energy_joules is None:
            return None
        return _with_all_errors(
            self.energy_joules, self.uncertainty_joules, self.total_uncertainty_joules
        )

    def metrics(self) -> dict[str, float]:
        """Return the known figures by name with unit, for trackers:
        `mlflow.log_metrics(result.metrics())`.

        Empty if nothing was measured.
        """
        energy = self.energy_j
        if energy is None:
            return {}
        known = _metrics(energy, self.emissions_grams, self.duration_seconds)
        names = {
            unit: self.unit_names.get(unit, unit).replace(" ", "_") for unit in self.joules_per_unit
        }
        return known | {
            f"joules_per_{names[unit]}": joules for unit, joules in self.joules_per_unit.items()
        }


def _with_all_errors(joules: float, random_j: float | None, total_j: float | None) -> Figure:
    """Return an energy with the half-width of all errors, else of the random ones."""
    return Figure(joules, random_j if total_j is None else total_j)


def _metrics(energy: Figure, grams: float | None, duration_s: float | None) -> dict[str, float]:
    values = {
        "energy_joules": energy.number,
        "energy_uncertainty_joules": energy.half_width,
        "mean_power_watts": energy.number / duration_s if duration_s else None,
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
) -> Run | None:
    """Log the summary of the exporter's response to the end of a run; return the run, None if it
    cannot be read.

    With `quiet` only the notes are logged.
    """
    try:
        run = Run.parse(answer)
    except RunFormatError as error:
        log_message(
            f"cannot read the exporter's response: {error}; install the same version of wattline "
            "for both"
        )
        return None
    for line in run.notes if quiet else summary_lines(run, outcome, source):
        log_message(line)
    return run


def summary_lines(run: Run, outcome: str, source: str | None) -> Iterator[str]:
    """Yield notes, results and energy; `source` is the analyzer's `--source`, where it is
    needed.
    """
    yield from run.notes
    yield from _results(run)
    if run.outcome != outcome:
        yield f"the command ended as {outcome}, but the run had already been ended as {run.outcome}"
    first = f"run {run.run_id} {run.outcome} in {run.duration_s:.1f} s: "
    if not run.devices:
        is_explained = NO_GPU_FOUND in run.notes
        hint = "" if is_explained else "; exporter check lists what this machine can measure"
        yield f"{first}no energy was measured{hint}"
        return
    report = f"wattline report {run.run_id}" + (f" --source {source}" if source else "")
    energies = [_energy_text(run, name) for name in run.components]
    emissions = run.emissions_g
    derived = [] if emissions.value is None else [mass_text(emissions)]
    derived += _primary(run)
    line = f"{first}{', '.join([*energies, *derived])}; {report}"
    if len(energies) == 1 and len(line) <= _LONGEST_LINE:
        yield line
        return
    yield f"{first}{energies[0]}"
    if len(energies) > 1:
        yield ", ".join(energies[1:])
    yield "; ".join(filter(None, [", ".join(derived), report]))


def _energy_text(run: Run, component: str) -> str:
    energy = run.energy(component)
    devices = DEVICES[component]
    if component == "gpu" and run.is_simulated:
        devices = f"SIMULATED {devices}"
    if energy.value is None:
        return f"energy of the {devices} unknown ({energy.reason})"
    whole = f"{joules_text(energy)} of the {devices}"
    mean = mean_power_text(energy, run.duration_s) if run.duration_s > 0 else ""
    share_j = run.attributed_j(component)
    share = "" if share_j is None else f"{part_text(share_j, energy)} attributed to this run"
    details = "; ".join(filter(None, (joules_errors_text(energy), mean, share)))
    return whole + (f" ({details})" if details else "")


def _results(run: Run) -> Iterator[str]:
    """Yield the job's results without percentiles and means, and the energy per unit of work that
    the last line does not have.
    """
    shown = {
        name: value
        for name, value in run.results.items()
        if not _STATISTIC.search(name) and (value or not _PROBLEM.search(name))
    }
    texts = [f"{name} {short_text(value)}" for name, value in list(shown.items())[:_MOST_SHOWN]]
    for first in range(0, len(texts), _SHOWN_PER_LINE):
        yield ", ".join(texts[first : first + _SHOWN_PER_LINE])
    for number, one in enumerate(run.energy_per_unit()):
        if number > 0 or one.whole_device is not None:
            yield _energy_per_unit(one)


def _primary(run: Run) -> list[str]:
    """Return the energy per unit of the primary unit, if there is one, for the last line."""
    per_unit = run.energy_per_unit()
    if not per_unit:
        return []
    first = per_unit[0]
    share = " attributed to this run" if first.whole_device is not None else ""
    phases = f" during the phase {' and '.join(first.phases)}" if first.phases else ""
    return [f"{energy_of_one_text(first.energy)} per {first.name}{phases}{share}"]


def _energy_per_unit(one: UnitEnergy) -> str:
    """Return the energy per unit of work, with its devices and its time."""
    devices = DEVICES[one.component]
    each = energy_of_one_text(one.energy)
    if one.whole_device is not None:
        whole = energy_of_one_text(one.whole_device)
        return (
            f"{each} per {one.name} over the whole run, attributed to it, since others "
            f"used its {devices} as well ({whole} of the whole {devices})"
        )
    names = " and ".join(one.phases)
    when = f"during the phase {names}" if one.phases else "over the whole run"
    return f"{each} of the {devices} per {one.name} {when}"
