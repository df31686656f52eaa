"""Energy, work and emissions of the groups of a fleet, from sums of a server."""

from __future__ import annotations

import math
from collections.abc import Mapping

from wattline.contract.work import is_amount
from wattline.figures import JOULES_PER_KWH
from wattline_analyzer.usage.fleet import (
    COMPONENTS,
    GIVEN,
    NO_GPU,
    NO_LABEL,
    Counts,
    Fleet,
    FleetGroup,
    GroupWork,
    Keys,
    Sums,
)

_COVERED = 0.99
"""Least ratio of a group's energy with a known uncertainty for which the group has one."""


def fleet(by: Keys, policy: str, counts: Counts, grams_per_kwh: float | None = None) -> Fleet:
    """Return the groups of a fleet; `grams_per_kwh` replaces the recorded emissions."""
    joules = _by_group(_named(counts.claimed))
    work, working = _by_group(_named(counts.work)), _by_group(_named(counts.working))
    unmeasured = _by_group(_named(counts.unmeasured))
    runs = _by_group(_named(counts.runs))
    devices, device_grams = _total(counts.devices), _total(counts.device_grams)
    unknown = _unknown_kinds(devices, device_grams)
    emitted = _by_group(_without(_named(counts.grams), unknown))
    seconds, squares = (
        _by_group(_named(counts.gpu_seconds)),
        _by_group(_named(counts.squared_halves)),
    )
    certain = _by_group(_named(counts.certain))
    groups = []
    for keys in joules.keys() | work.keys() | runs.keys():
        components = {what[0]: value for what, value in joules.get(keys, {}).items()}
        components = (
            components if any(components.values()) else {}
        )  # none of it was attributed to the runs
        grams = {(what[0], what[1]): value for what, value in emitted.get(keys, {}).items()}
        if grams_per_kwh is not None:
            grams = {GIVEN: sum(components.values()) / JOULES_PER_KWH * grams_per_kwh}
        done = {
            what[0]: GroupWork(
                amount, *(each.get(keys, {}).get(what, 0.0) for each in (working, unmeasured))
            )
            for what, amount in work.get(keys, {}).items()
            if is_amount(what[0])
        }
        known_j = certain.get(keys, {}).get((), 0.0)
        is_certain = bool(components) and known_j >= _COVERED * sum(components.values())
        square = squares.get(keys, {}).get(()) if is_certain else None
        number = runs.get(keys, {}).get(())
        if number is None and not any(components.values()):
            continue  # ended before the window
        groups.append(
            FleetGroup(
                keys,
                components,
                None if number is None else round(number),
                done,
                grams,
                seconds.get(keys, {}).get(()),
                None if square is None else math.sqrt(square),
            )
        )
    total_grams = {
        (what[0], what[1]): value for what, value in device_grams.items() if what not in unknown
    }
    if grams_per_kwh is not None:
        total_grams = {GIVEN: sum(devices.values()) / JOULES_PER_KWH * grams_per_kwh}
    return Fleet(
        by,
        policy,
        tuple(sorted(groups, key=lambda group: (-group.energy_j, group.keys))),
        tuple(_unattributed_groups(counts, grams_per_kwh, unknown)),
        {name: devices[name,] for name in COMPONENTS if (name,) in devices},
        total_grams,
        sum(counts.idle.values()),
        counts.means,
        counts.nodes,
        counts.by_owners,
        counts.emissions_left_out and grams_per_kwh is None,
        counts.primary,
        counts.emission_energy if grams_per_kwh is None else {},
    )


def _unknown_kinds(devices: Mapping[Keys, float], device_grams: Mapping[Keys, float]) -> set[Keys]:
    """Return the kinds of emissions that no device had although it used energy.

    An exporter without carbon options keeps the counters of earlier times, which then stay
    constant.
    """
    if not any(joules > 0 for joules in devices.values()):
        return set()
    return {what for what, grams in device_grams.items() if grams == 0}


def _without(sums: Sums, unknown: set[Keys]) -> Sums:
    return {key: value for key, value in sums.items() if key[1] not in unknown}


def _unattributed_groups(
    counts: Counts, grams_per_kwh: float | None, unknown: set[Keys]
) -> list[FleetGroup]:
    """Return the unattributed energy by the keys of devices, by falling energy."""
    seconds = _by_group(_named(counts.unattributed_gpu_seconds, NO_GPU))
    emitted = _by_group(_without(_named(counts.unattributed_grams, NO_GPU), unknown))
    groups = []
    for keys, parts in _by_group(_named(counts.unclaimed, NO_GPU)).items():
        joules = {what[0]: value for what, value in parts.items()}
        grams = {(what[0], what[1]): value for what, value in emitted.get(keys, {}).items()}
        if grams_per_kwh is not None:
            grams = {GIVEN: sum(joules.values()) / JOULES_PER_KWH * grams_per_kwh}
        groups.append(
            FleetGroup(keys, joules, grams=grams, gpu_seconds=seconds.get(keys, {}).get(()))
        )
    return sorted(groups, key=lambda group: (-group.energy_j, group.keys))


def _named(sums: Sums, lacking: str = NO_LABEL) -> Sums:
    """Replace empty keys by a name."""
    return {
        (tuple(key or lacking for key in keys), what): value for (keys, what), value in sums.items()
    }


def _by_group(sums: Sums) -> dict[Keys, dict[Keys, float]]:
    groups: dict[Keys, dict[Keys, float]] = {}
    for (keys, what), value in sums.items():
        groups.setdefault(keys, {})[what] = value
    return groups


def _total(sums: Sums) -> dict[Keys, float]:
    total: dict[Keys, float] = {}
    for (_, what), value in sums.items():
        total[what] = total.get(what, 0.0) + value
    return total
