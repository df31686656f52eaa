"""What tenants of one GPU cost each other, from what each did while all were at work. Pure.

System throughput (STP), average normalized turnaround time (ANTT) and normalized progress are those of Eyerman and
Eeckhout, "System-Level Performance Metrics for Multiprogram Workloads", IEEE Micro 28 (3), 2008; fairness is the least
normalized progress over the greatest (Gabor, Weiss and Mendelson, MICRO 2006), in their section on fairness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analyzer.studies import spread

_BANDS = ((0.05, "even"), (0.10, "nearly even"), (0.20, "uneven"))
_UNLIKE = 0.15
"""A slowdown that far above the mean is starving, that far below hogging."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A tenant with the GPU to itself: units per second, joules per unit, idle watts of the GPU, percentiles; `unit` is
    what it counted, empty where nobody says.
    """

    rate: float
    energy_per_unit_j: float | None = None
    idle_power_w: float | None = None
    p99: Mapping[str, float] | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """What one tenant did in the overlap: `energy_j` is what was attributed to it, `overlap_ratio` the part of its own
    phase measure that the overlap is; `p99` are its results, of the whole phase.
    """

    tenant: str
    unit: str
    work: float
    energy_j: float | None
    overlap_ratio: float
    p99: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Together:
    """Tenants that ran side by side once; `seconds` is the overlap."""

    case: str
    repeat: str
    mps: bool
    seconds: float
    shares: tuple[Share, ...]

    @property
    def rates(self) -> dict[str, float]:
        return {share.tenant: share.work / self.seconds for share in self.shares}

    @property
    def unit(self) -> str | None:
        """None where tenants count different things, which do not add up."""
        units = {share.unit for share in self.shares}
        return units.pop() if len(units) == 1 else None

    @property
    def energy_j(self) -> float | None:
        parts = [share.energy_j for share in self.shares]
        return None if None in parts else math.fsum(part or 0.0 for part in parts)


def progress(together: Together, alone: Mapping[str, Alone]) -> dict[str, float] | None:
    """Normalized progress: the rate beside others over the rate alone; None where one has no run alone."""
    if any(share.work <= 0 or _of_share(share, alone) is None for share in together.shares):
        return None
    return {tenant: rate / alone[tenant].rate for tenant, rate in together.rates.items()}


def _of_share(share: Share, alone: Mapping[str, Alone]) -> Alone | None:
    """The tenant alone, where that counted the same: samples are no steps."""
    one = alone.get(share.tenant)
    return one if one is not None and one.unit in ("", share.unit) else None


def system_throughput(made: Mapping[str, float]) -> float:
    """STP, the sum of normalized progress: how many GPUs' work the one GPU does (Eyerman and Eeckhout)."""
    return math.fsum(made.values())


def turnaround(made: Mapping[str, float]) -> float:
    """ANTT, the mean slowdown of the tenants (Eyerman and Eeckhout)."""
    return math.fsum(1 / one for one in made.values()) / len(made)


def worst_slowdown(made: Mapping[str, float]) -> float:
    return 1 / min(made.values())


def fairness(made: Mapping[str, float]) -> float:
    """1 where all are slowed down alike, 0 where one starves (Gabor et al.)."""
    return min(made.values()) / max(made.values())


def sequential_energy_j(together: Together, alone: Mapping[str, Alone]) -> float | None:
    """Of the same work, one tenant after the other on the one GPU; None where a run alone or its energy is missing."""
    parts = []
    for share in together.shares:
        one = _of_share(share, alone)
        if one is None or one.energy_per_unit_j is None:
            return None
        parts.append(share.work * one.energy_per_unit_j)
    return math.fsum(parts)


def own_gpus_energy_j(together: Together, alone: Mapping[str, Alone]) -> float | None:
    """Of the same work, each tenant on a GPU of its own that idles for the rest of the overlap."""
    working_j = sequential_energy_j(together, alone)
    if working_j is None:
        return None
    idle_j = []
    for share in together.shares:
        one = alone[share.tenant]
        if one.idle_power_w is None:
            return None
        idle_j.append(one.idle_power_w * max(together.seconds - share.work / one.rate, 0.0))
    return working_j + math.fsum(idle_j)


def figures(together: Together, alone: Mapping[str, Alone]) -> dict[str, float]:
    """All that is known of one step, by names that carry their units."""
    found: dict[str, float] = {}
    energy_j = together.energy_j
    total = math.fsum(share.work for share in together.shares)
    if together.unit and total > 0:
        found["total_per_second"] = total / together.seconds
        if energy_j:
            found["energy_per_unit_joules"] = energy_j / total
    if energy_j:
        found["energy_joules"] = energy_j
    for name, base_j in (
        ("energy_over_sequential_ratio", sequential_energy_j(together, alone)),
        ("energy_over_own_gpus_ratio", own_gpus_energy_j(together, alone)),
    ):
        if energy_j and base_j:
            found[name] = energy_j / base_j
    made = progress(together, alone)
    if made:
        found["stp"], found["antt"] = system_throughput(made), turnaround(made)
        found["worst_slowdown"], found["fairness"] = worst_slowdown(made), fairness(made)
    for share in together.shares:
        found |= _of_tenant(share, together, alone.get(share.tenant), made)
    return found


def _of_tenant(
    share: Share, together: Together, alone: Alone | None, made: Mapping[str, float] | None
) -> dict[str, float]:
    name = share.tenant
    found = {f"{name}:{share.unit}_per_second": share.work / together.seconds}
    if share.energy_j and share.work > 0:
        found[f"{name}:energy_per_{share.unit}_joules"] = share.energy_j / share.work
    if made:
        found[f"{name}:slowdown"] = 1 / made[name]
    for result, value in share.p99.items():
        found[f"{name}:{result}"] = value
        solo = (alone.p99 or {}).get(result) if alone else None
        if solo:
            found[f"{name}:{result}_over_solo_ratio"] = value / solo
    return {key: value for key, value in found.items() if value > 0}


@dataclass(frozen=True, slots=True)
class Evenness:
    """How alike tenants fare, by their mean slowdown, or by their rates where none ran alone."""

    of: str
    cv: float
    band: str
    gini: float
    most_over_least: float
    roles: Mapping[str, str]


def evenness(steps: Sequence[Together], alone: Mapping[str, Alone]) -> Evenness | None:
    """Of the repeats of one mix; None for a single tenant, and for rates of different units."""
    made = [progress(step, alone) for step in steps]
    known = [one for one in made if one]
    names = [share.tenant for share in steps[0].shares]
    if len(names) < 2 or (len(known) < len(made) and steps[0].unit is None):
        return None
    by_slowdown = len(known) == len(made)
    values = {
        name: math.fsum(1 / one[name] for one in known) / len(known)
        if by_slowdown
        else math.fsum(step.rates[name] for step in steps) / len(steps)
        for name in names
    }
    if min(values.values()) <= 0:
        return None
    cv = spread.coefficient_of_variation(list(values.values()))
    band = next((word for limit, word in _BANDS if cv < limit), "very uneven")
    mean = math.fsum(values.values()) / len(values)
    roles = {name: _role(value / mean, by_slowdown=by_slowdown) for name, value in values.items()}
    most = max(values.values()) / min(values.values())
    return Evenness("slowdown" if by_slowdown else "rate", cv, band, spread.gini(list(values.values())), most, roles)


def _role(over_mean: float, *, by_slowdown: bool) -> str:
    fast = over_mean < 1 - _UNLIKE if by_slowdown else over_mean > 1 + _UNLIKE
    slow = over_mean > 1 + _UNLIKE if by_slowdown else over_mean < 1 - _UNLIKE
    return "hogs" if fast else "starves" if slow else "as the others"


def superiority(first: Sequence[float], second: Sequence[float]) -> float:
    """Cliff's delta: how much more often a value of the first is above one of the second than below, −1 to 1."""
    pairs = [(a > b) - (a < b) for a in first for b in second]
    return sum(pairs) / len(pairs)
