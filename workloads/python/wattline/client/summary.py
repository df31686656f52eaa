"""Summary of an ended run, from the exporter's response to its end.

Only the standard library is imported, since it also runs inside users' training processes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from wattline.client.messages import log_message

_DEVICES = {"gpu": "GPUs", "cpu": "CPUs", "dram": "memory"}
_PERCENTILE = re.compile(r"_p\d\d$")
_MOST_SHOWN = 6
NO_GPU_FOUND = "no process of the run was found on a GPU"
"""Start of a note that also explains a run without energy; `exporter.contract.run` defines it."""


@dataclass(frozen=True, slots=True)
class ComponentEnergy:
    """Energy of all devices of a component: their sum in joules, with the 95 % half-width, None if unknown."""

    joules: float
    half_j: float | None
    attributed_j: float | None
    """The run's part, None on devices that nothing else used."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """An ended run; `parse` reads the JSON of the run API (`exporter.contract.run.RunView`)."""

    run_id: str
    outcome: str
    duration_s: float
    energies: Mapping[str, ComponentEnergy]
    grams: float | None
    """Emissions in g CO2eq by the average intensity, by the marginal one where only that is known; else None."""
    results: Mapping[str, float]
    per_unit: tuple[Mapping[str, Any], ...]
    """`energy_per_unit` of the response."""
    notes: tuple[str, ...]
    simulated: bool

    @classmethod
    def parse(cls, run: Mapping[str, Any]) -> EndedRun:
        """Return the run. Raises KeyError, TypeError, ValueError or AttributeError for another document."""
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
    def energy_j(self) -> float | None:
        """Sum over the components, None if none was measured."""
        return _sum_j(self.energies) if self.energies else None

    @property
    def half_j(self) -> float | None:
        """Half-width of `energy_j`: half-widths add, since one job loads all devices at the same time."""
        return _sum_half_j(self.energies)


def energies_by_component(run: Mapping[str, Any]) -> dict[str, ComponentEnergy]:
    """Return the energies of a run of the run API."""
    halves, shares = run.get("energy_uncertainty_joules", {}), run.get("attributed_energy_joules", {})
    return {
        name: _component(run["energy_joules"][name], halves.get(name, {}), shares.get(name, {}))
        for name in _DEVICES
        if run["energy_joules"].get(name)
    }


def _sum_j(energies: Mapping[str, ComponentEnergy]) -> float:
    return math.fsum(one.joules for one in energies.values())


def _sum_half_j(energies: Mapping[str, ComponentEnergy]) -> float | None:
    halves = [one.half_j for one in energies.values() if one.half_j is not None]
    return math.fsum(halves) if energies and len(halves) == len(energies) else None


def _component(
    joules: Mapping[str, float], halves_j: Mapping[str, float], shares_j: Mapping[str, float]
) -> ComponentEnergy:
    half_j = math.fsum(halves_j[device] for device in joules) if joules.keys() <= halves_j.keys() else None
    share_j = math.fsum(shares_j.get(device, energy_j) for device, energy_j in joules.items()) if shares_j else None
    return ComponentEnergy(math.fsum(joules.values()), half_j, share_j)


def _grams(emissions: Any, energies: Mapping[str, ComponentEnergy]) -> float | None:
    """Return the emissions of all components; None where one of them has none, since the sum would lack it."""
    for basis in ("average", "marginal"):
        parts = [one for one in emissions if one["basis"] == basis]
        if energies and energies.keys() <= {one["component"] for one in parts}:
            return math.fsum(one["grams"] for one in parts if one["component"] in energies)
    return None


@dataclass(frozen=True, slots=True)
class EnergySoFar:
    """Energy of a run up to now, `str(energy)` is `80.4 ± 1.4 J`."""

    joules: float
    """Sum over the whole GPUs, CPUs and memory of the run."""
    uncertainty_joules: float | None
    """Half-width of its 95 % confidence interval, None if it is unknown."""

    def __str__(self) -> str:
        return f"{_number(self.joules, self.uncertainty_joules)} J"

    @classmethod
    def parse(cls, run: Mapping[str, Any]) -> EnergySoFar | None:
        """Return the energy of a run of the run API, None if nothing is measured yet."""
        parts = energies_by_component(run)
        return cls(_sum_j(parts), _sum_half_j(parts)) if parts else None


@dataclass(frozen=True, slots=True)
class RunResult:
    """Figures of a run after its end; None where they are unknown, also for a run that another program ends."""

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
    """Energy per unit of work, by unit, the primary one first; on shared devices the part attributed to the run."""

    @classmethod
    def of(cls, run_id: str | None, ended: EndedRun | None) -> RunResult:
        if ended is None:
            return cls(run_id)
        return cls(
            ended.run_id,
            ended.outcome,
            ended.duration_s,
            ended.energy_j,
            ended.half_j,
            ended.grams,
            {str(one["unit"]): float(one["joules"]) for one in ended.per_unit},
        )


def outcome_of(error: BaseException | None) -> str:
    """Return the outcome of a run that `error` ended, None without an exception."""
    if error is None or (isinstance(error, SystemExit) and error.code in {None, 0}):
        return "ok"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


def log_summary(answer: Mapping[str, Any], outcome: str, source: str | None, *, quiet: bool = False) -> EndedRun | None:
    """Log the summary of the exporter's response to the end of a run; return the run, None if it cannot be read.

    With `quiet` only the notes are logged.
    """
    try:
        run = EndedRun.parse(answer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log_message(f"cannot read the exporter's response: {error!r}; install the same version of wattline for both")
        return None
    for line in run.notes if quiet else summary_lines(run, outcome, source):
        log_message(line)
    return run


def summary_lines(run: EndedRun, outcome: str, source: str | None) -> Iterator[str]:
    """Yield notes, results and energy; `source` is the analyzer's `--source`, where it is needed."""
    yield from run.notes
    yield from _results(run)
    if run.outcome != outcome:
        yield f"the command ended as {outcome}, but the run had already been ended as {run.outcome}"
    yield f"run {run.run_id} {run.outcome} in {run.duration_s:.1f} s: {_energy_and_hint(run, source)}"


def _energy_and_hint(run: EndedRun, source: str | None) -> str:
    if run.energies:
        report = f"analyzer report --run-id {run.run_id}" + (f" --source {source}" if source else "")
        grams = "" if run.grams is None else f", {run.grams:.3g} g CO2eq"
        return ", ".join(_energy_text(run, name) for name in run.energies) + f"{grams}{_primary(run)}; {report}"
    if any(note.startswith(NO_GPU_FOUND) for note in run.notes):
        return "no energy was measured"
    return "no energy was measured; exporter check lists what this machine can measure"


def _energy_text(run: EndedRun, component: str) -> str:
    energy, devices = run.energies[component], _DEVICES[component]
    if component == "gpu" and run.simulated:
        devices = f"SIMULATED {devices}"
    mean = f"mean {energy.joules / run.duration_s:.4g} W" if run.duration_s > 0 else ""
    share = "" if energy.attributed_j is None else f"{_number(energy.attributed_j, None)} J attributed to this run"
    details = "; ".join(filter(None, (mean, share)))
    return f"{_number(energy.joules, energy.half_j)} J of the {devices}" + (f" ({details})" if details else "")


def _number(value: float, half: float | None) -> str:
    """Return the value with two digits of its half-width, or with four digits."""
    digits = 4 if not half or not math.isfinite(half) else None
    if digits is not None:
        decimals = max(0, digits - 1 - _magnitude(value))
        return f"{value:,.{decimals}f}"
    decimals = max(0, 1 - _magnitude(half or 0.0))
    return f"{value:,.{decimals}f} ± {half:,.{decimals}f}"


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def _results(run: EndedRun) -> Iterator[str]:
    """Yield the job's results without percentiles, and the energy per unit of work."""
    shown = {name: value for name, value in run.results.items() if not _PERCENTILE.search(name)}
    if shown:
        yield ", ".join(f"{name} {value:.4g}" for name, value in list(shown.items())[:_MOST_SHOWN])
    energies = list(_energies_per_unit(run))
    if len(energies) > 1 or any(one["phases"] or one["whole_device_joules"] is not None for one in run.per_unit):
        yield ", or ".join(energies)


def _primary(run: EndedRun) -> str:
    """Return the energy per unit of the primary unit, for the last line."""
    if not run.per_unit:
        return ""
    first = run.per_unit[0]
    share = " attributed" if first["whole_device_joules"] is not None else ""
    phases = f" in {' and '.join(first['phases'])}" if first["phases"] else ""
    return f", {first['joules']:.4g} J{share} per {first['name']}{phases}"


def _energies_per_unit(run: EndedRun) -> Iterator[str]:
    """Yield the exporter's energy per unit, the primary one first."""
    for one in run.per_unit:
        name, devices, whole_j = one["name"], _DEVICES[one["component"]], one["whole_device_joules"]
        if whole_j is not None:
            yield (
                f"{one['joules']:.4g} J per {name} over the whole run, attributed to it, since others used its "
                f"{devices} as well ({whole_j:.4g} J of the whole {devices})"
            )
        else:
            where = f"during the phase {' and '.join(one['phases'])}" if one["phases"] else "over the whole run"
            yield f"{one['joules']:.4g} J of the {devices} per {name} {where}"
