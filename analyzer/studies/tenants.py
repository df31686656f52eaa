"""Interference of tenants of one GPU, from their work while all of them ran.

System throughput (STP), average normalized turnaround time (ANTT) and normalized progress: Eyerman and Eeckhout,
"System-Level Performance Metrics for Multiprogram Workloads", IEEE Micro 28 (3), 2008. Fairness: smallest over largest
normalized progress (Gabor, Weiss and Mendelson, MICRO 2006, section on fairness).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analyzer.studies.variability import coefficient_of_variation, gini

_BANDS = ((0.05, "even"), (0.10, "nearly even"), (0.20, "uneven"))
_ROLE_RATIO = 0.15
"""Deviation from the mean slowdown from which a tenant starves (above) or hogs (below)."""


@dataclass(frozen=True, slots=True)
class SoloRun:
    """A tenant alone on the GPU: units per second, joules per unit, idle power of the GPU, percentiles; `unit` is empty
    where unknown.
    """

    rate: float
    energy_per_unit_j: float | None = None
    idle_power_w: float | None = None
    p99: Mapping[str, float] | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class TenantShare:
    """Work of one tenant in the overlap. `energy_j` is its attributed energy, `overlap_ratio` the overlap relative to
    its phase `measure`. `p99` are results of the whole phase.
    """

    tenant: str
    unit: str
    work: float
    energy_j: float | None
    overlap_ratio: float
    p99: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ConcurrentStep:
    """One repeat of concurrent tenants; `seconds` is the length of the overlap."""

    case: str
    repeat: str
    mps: bool
    seconds: float
    shares: tuple[TenantShare, ...]

    @property
    def rates(self) -> dict[str, float]:
        return {share.tenant: share.work / self.seconds for share in self.shares}

    @property
    def unit(self) -> str | None:
        """Common unit of work; None if the tenants count different units."""
        units = {share.unit for share in self.shares}
        return units.pop() if len(units) == 1 else None

    @property
    def energy_j(self) -> float | None:
        parts = [share.energy_j for share in self.shares]
        return None if None in parts else math.fsum(part or 0.0 for part in parts)


def normalized_progress(step: ConcurrentStep, alone: Mapping[str, SoloRun]) -> dict[str, float] | None:
    """Return rate in the overlap over rate alone by tenant; None if a tenant has no solo run."""
    if any(share.work <= 0 or _solo_run(share, alone) is None for share in step.shares):
        return None
    return {tenant: rate / alone[tenant].rate for tenant, rate in step.rates.items()}


def _solo_run(share: TenantShare, alone: Mapping[str, SoloRun]) -> SoloRun | None:
    """Return the tenant's solo run if it has the same unit."""
    one = alone.get(share.tenant)
    return one if one is not None and one.unit in ("", share.unit) else None


def system_throughput(progress: Mapping[str, float]) -> float:
    """Return the STP, the sum of normalized progress (Eyerman and Eeckhout)."""
    return math.fsum(progress.values())


def turnaround(progress: Mapping[str, float]) -> float:
    """Return the ANTT, the mean slowdown (Eyerman and Eeckhout)."""
    return math.fsum(1 / one for one in progress.values()) / len(progress)


def worst_slowdown(progress: Mapping[str, float]) -> float:
    return 1 / min(progress.values())


def fairness(progress: Mapping[str, float]) -> float:
    """Return 1 for equal slowdown, 0 if one tenant starves (Gabor et al.)."""
    return min(progress.values()) / max(progress.values())


def jain_index(progress: Mapping[str, float]) -> float:
    """Return Jain's fairness index: 1 for equal progress, 1/n if one of n tenants has all (DEC-TR-301, 1984)."""
    values = progress.values()
    return math.fsum(values) ** 2 / (len(values) * math.fsum(one**2 for one in values))


def sequential_energy_j(step: ConcurrentStep, alone: Mapping[str, SoloRun]) -> float | None:
    """Return the energy of the same work done sequentially on the GPU; None if a solo run or its energy is missing."""
    parts = []
    for share in step.shares:
        one = _solo_run(share, alone)
        if one is None or one.energy_per_unit_j is None:
            return None
        parts.append(share.work * one.energy_per_unit_j)
    return math.fsum(parts)


def dedicated_gpus_energy_j(step: ConcurrentStep, alone: Mapping[str, SoloRun]) -> float | None:
    """Return the energy of the same work on one dedicated GPU per tenant, idle for the rest of the overlap."""
    working_j = sequential_energy_j(step, alone)
    if working_j is None:
        return None
    idle_j = []
    for share in step.shares:
        one = alone[share.tenant]
        if one.idle_power_w is None:
            return None
        idle_j.append(one.idle_power_w * max(step.seconds - share.work / one.rate, 0.0))
    return working_j + math.fsum(idle_j)


def step_figures(step: ConcurrentStep, alone: Mapping[str, SoloRun]) -> dict[str, float]:
    """Return the known figures of one step, by names with units."""
    found: dict[str, float] = {}
    energy_j = step.energy_j
    total = math.fsum(share.work for share in step.shares)
    if step.unit and total > 0:
        found["total_per_second"] = total / step.seconds
        if energy_j:
            found["energy_per_unit_joules"] = energy_j / total
    if energy_j:
        found["energy_joules"] = energy_j
    for name, base_j in (
        ("energy_over_sequential_ratio", sequential_energy_j(step, alone)),
        ("energy_over_own_gpus_ratio", dedicated_gpus_energy_j(step, alone)),
    ):
        if energy_j and base_j:
            found[name] = energy_j / base_j
    progress = normalized_progress(step, alone)
    if progress:
        found["stp"], found["antt"] = system_throughput(progress), turnaround(progress)
        found["worst_slowdown"], found["fairness"] = worst_slowdown(progress), fairness(progress)
        found["jain_index"] = jain_index(progress)
    for share in step.shares:
        found |= _tenant_figures(share, step, alone.get(share.tenant), progress)
    return found


def _tenant_figures(
    share: TenantShare, step: ConcurrentStep, alone: SoloRun | None, progress: Mapping[str, float] | None
) -> dict[str, float]:
    name = share.tenant
    found = {f"{name}:{share.unit}_per_second": share.work / step.seconds}
    if share.energy_j and share.work > 0:
        found[f"{name}:energy_per_{share.unit}_joules"] = share.energy_j / share.work
    if progress:
        found[f"{name}:slowdown"] = 1 / progress[name]
    for result, value in share.p99.items():
        found[f"{name}:{result}"] = value
        solo = (alone.p99 or {}).get(result) if alone else None
        if solo:
            found[f"{name}:{result}_over_solo_ratio"] = value / solo
    return {key: value for key, value in found.items() if value > 0}


@dataclass(frozen=True, slots=True)
class Evenness:
    """Equality of tenants by mean slowdown, or by rate if there are no solo runs."""

    of: str
    cv: float
    band: str
    gini: float
    most_over_least: float
    roles: Mapping[str, str]


def evenness(steps: Sequence[ConcurrentStep], alone: Mapping[str, SoloRun]) -> Evenness | None:
    """Return the evenness over the repeats of one mix; None for one tenant or rates of different units."""
    every = [normalized_progress(step, alone) for step in steps]
    known = [one for one in every if one]
    names = [share.tenant for share in steps[0].shares]
    if len(names) < 2 or (len(known) < len(every) and steps[0].unit is None):
        return None
    by_slowdown = len(known) == len(every)
    values = {
        name: math.fsum(1 / one[name] for one in known) / len(known)
        if by_slowdown
        else math.fsum(step.rates[name] for step in steps) / len(steps)
        for name in names
    }
    if min(values.values()) <= 0:
        return None
    cv = coefficient_of_variation(list(values.values()))
    band = next((word for limit, word in _BANDS if cv < limit), "very uneven")
    mean = math.fsum(values.values()) / len(values)
    roles = {name: _role(value / mean, by_slowdown=by_slowdown) for name, value in values.items()}
    most = max(values.values()) / min(values.values())
    return Evenness("slowdown" if by_slowdown else "rate", cv, band, gini(list(values.values())), most, roles)


def _role(over_mean: float, *, by_slowdown: bool) -> str:
    fast = over_mean < 1 - _ROLE_RATIO if by_slowdown else over_mean > 1 + _ROLE_RATIO
    slow = over_mean > 1 + _ROLE_RATIO if by_slowdown else over_mean < 1 - _ROLE_RATIO
    return "hogs" if fast else "starves" if slow else "as the others"


def cliffs_delta(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Cliff's delta, -1 to 1: how much more often values of `first` are above than below those of `second`."""
    pairs = [(a > b) - (a < b) for a in first for b in second]
    return sum(pairs) / len(pairs)
