"""Interference of tenants of one GPU, from their work while all of them ran.

System throughput (STP), average normalized turnaround time (ANTT) and normalized progress: Eyerman
and Eeckhout, "System-Level Performance Metrics for Multiprogram Workloads", IEEE Micro 28 (3),
2008. Fairness: smallest over largest normalized progress (Gabor, Weiss and Mendelson, MICRO 2006,
section on fairness).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wattline.figures import Figure, product, ratio, sum_of_correlated
from wattline_analyzer.variability.figures import coefficient_of_variation, gini

_BANDS = ((0.05, "even"), (0.10, "nearly even"), (0.20, "uneven"))
_LEAST = 1e-6
"""Share of the work that a tenant did at least, which limits its slowdown."""
_ROLE_RATIO = 0.15
"""Deviation from the mean slowdown from which a tenant starves (above) or hogs (below)."""


@dataclass(frozen=True, slots=True)
class SoloRun:
    """A tenant alone on the GPU: units per second, joules per unit, idle power of the GPU,
    percentiles; `unit` is empty where unknown.
    """

    rate: float
    energy_per_unit: Figure | None = None
    idle_power_w: float | None = None
    p99: Mapping[str, float] | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class TenantShare:
    """Work of one tenant in the overlap, and its attributed energy in joules. `overlap_ratio` is
    the overlap relative to its phase `measure`. `p99` are results of the whole phase.
    """

    tenant: str
    unit: str
    work: Figure
    energy: Figure | None
    overlap_ratio: float
    p99: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ConcurrentStep:
    """One repeat of concurrent tenants; `seconds` is the length of the overlap.

    `energy` is the sum of all tenants in joules, None if it is unknown for one of them.
    """

    case: str
    repeat: str
    mps: bool
    seconds: float
    shares: tuple[TenantShare, ...]
    energy: Figure | None = None

    @property
    def rates(self) -> dict[str, float]:
        return {share.tenant: share.work.number / self.seconds for share in self.shares}

    @property
    def unit(self) -> str | None:
        """Common unit of work; None if the tenants count different units."""
        units = {share.unit for share in self.shares}
        return units.pop() if len(units) == 1 else None


def normalized_progress(
    step: ConcurrentStep, alone: Mapping[str, SoloRun]
) -> dict[str, float] | None:
    """Return rate in the overlap over rate alone by tenant; None if a tenant has no solo run."""
    if any(share.work.number <= 0 or _solo_run(share, alone) is None for share in step.shares):
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
    """Return Jain's fairness index: 1 for equal progress, 1/n if one of n tenants has all
    (DEC-TR-301, 1984).
    """
    values = progress.values()
    return math.fsum(values) ** 2 / (len(values) * math.fsum(one**2 for one in values))


def sequential_energy(step: ConcurrentStep, alone: Mapping[str, SoloRun]) -> Figure | None:
    """Return the joules of the same work done sequentially on the GPU; None if a solo run or its
    energy is missing.
    """
    parts = []
    for share in step.shares:
        one = _solo_run(share, alone)
        if one is None or one.energy_per_unit is None:
            return None
        parts.append(product(share.work, one.energy_per_unit))
    return sum_of_correlated(parts)


def dedicated_gpus_energy(step: ConcurrentStep, alone: Mapping[str, SoloRun]) -> Figure | None:
    """Return the joules of the same work on one dedicated GPU per tenant, idle for the rest of the
    overlap.
    """
    working = sequential_energy(step, alone)
    if working is None:
        return None
    idle_j = []
    for share in step.shares:
        one = alone[share.tenant]
        if one.idle_power_w is None:
            return None
        idle_j.append(one.idle_power_w * max(step.seconds - share.work.number / one.rate, 0.0))
    return Figure(working.number + math.fsum(idle_j), working.half_width)


def step_figures(step: ConcurrentStep, alone: Mapping[str, SoloRun]) -> dict[str, Figure]:
    """Return the known figures of one step, by names with units; those of energies with their
    uncertainty.
    """
    found: dict[str, Figure] = {}
    energy = step.energy if step.energy and step.energy.number > 0 else None
    work = sum_of_correlated(share.work for share in step.shares)
    if step.unit and work.number > 0:
        found["total_per_second"] = Figure(work.number / step.seconds)
        if energy:
            found["energy_per_unit_joules"] = ratio(energy, work)
    if energy:
        found["energy_joules"] = energy
    for name, base in (
        ("energy_over_sequential_ratio", sequential_energy(step, alone)),
        ("energy_over_own_gpus_ratio", dedicated_gpus_energy(step, alone)),
    ):
        if energy and base and base.number > 0:
            found[name] = ratio(energy, base)
    progress = normalized_progress(step, alone)
    if progress:
        of_all = {
            "stp": system_throughput(progress),
            "antt": turnaround(progress),
            "worst_slowdown": worst_slowdown(progress),
            "fairness": fairness(progress),
            "jain_index": jain_index(progress),
        }
        found |= {name: Figure(value) for name, value in of_all.items()}
    for share in step.shares:
        found |= _tenant_figures(share, step, alone.get(share.tenant), progress)
    return found


def _tenant_figures(
    share: TenantShare,
    step: ConcurrentStep,
    alone: SoloRun | None,
    progress: Mapping[str, float] | None,
) -> dict[str, Figure]:
    name = share.tenant
    found = {f"{name}:{share.unit}_per_second": Figure(share.work.number / step.seconds)}
    if share.energy and share.work.number > 0:
        found[f"{name}:energy_per_{share.unit}_joules"] = ratio(share.energy, share.work)
    if progress:
        found[f"{name}:slowdown"] = Figure(1 / progress[name])
    for result, value in share.p99.items():
        found[f"{name}:{result}"] = Figure(value)
        solo = (alone.p99 or {}).get(result) if alone else None
        if solo:
            found[f"{name}:{result}_over_solo_ratio"] = Figure(value / solo)
    return {key: one for key, one in found.items() if one.number > 0}


def figure_intervals(step: ConcurrentStep, alone: Mapping[str, SoloRun]) -> dict[str, Figure]:
    """Return the figures of one step; those of the work alone have limits by the limits of each
    tenant's work.
    """
    found = step_figures(step, alone)
    every = [step_figures(one, alone) for one in _variants(step, alone)]
    for name, one in found.items():
        values = [
            one.number,
            *(variant[name].number if name in variant else 0.0 for variant in every),
        ]
        if "energy" not in name and min(values) < max(values):
            found[name] = Figure(one.value, skewed=(min(values), max(values)))
    return found


def _variants(step: ConcurrentStep, alone: Mapping[str, SoloRun]) -> Iterator[ConcurrentStep]:
    """Yield the step with extreme works, in which its figures have their limits.

    Most figures rise or fall with all works. Fairness is lowest where the fast tenants are fastest
    and the others slowest, and highest where all are as equal as possible.
    """
    rates = [one.rate if (one := _solo_run(share, alone)) else 1.0 for share in step.shares]
    limits = [
        share.work.limits if share.work.half_width is not None else (share.work.number,) * 2
        for share in step.shares
    ]
    progress = [share.work.number / rate for share, rate in zip(step.shares, rates, strict=True)]
    slowest_first = sorted(range(len(progress)), key=lambda at: progress[at])
    works = [
        [high if at in slowest_first[count:] else low for at, (low, high) in enumerate(limits)]
        for count in range(len(limits) + 1)
    ]
    lows, highs = (
        [pair[end] / rate for pair, rate in zip(limits, rates, strict=True)] for end in (0, 1)
    )
    middle = (max(lows) + min(highs)) / 2
    works.append(
        [
            min(max(middle * rate, low), high)
            for rate, (low, high) in zip(rates, limits, strict=True)
        ]
    )
    for amounts in works:
        shares = zip(step.shares, amounts, strict=True)
        yield replace(
            step,
            shares=tuple(
                replace(share, work=Figure(max(amount, _LEAST * share.work.number)))
                for share, amount in shares
            ),
        )


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
    """Return the evenness over the repeats of one mix; None for one tenant or rates of different
    units.
    """
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
    return Evenness(
        "slowdown" if by_slowdown else "rate", cv, band, gini(list(values.values())), most, roles
    )


def _role(over_mean: float, *, by_slowdown: bool) -> str:
    fast = over_mean < 1 - _ROLE_RATIO if by_slowdown else over_mean > 1 + _ROLE_RATIO
    slow = over_mean > 1 + _ROLE_RATIO if by_slowdown else over_mean < 1 - _ROLE_RATIO
    return "hogs" if fast else "starves" if slow else "as the others"


def cliffs_delta(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Cliff's delta, -1 to 1: how much more often values of `first` are above than below
    those of `second`.
    """
    pairs = [(a > b) - (a < b) for a in first for b in second]
    return sum(pairs) / len(pairs)
