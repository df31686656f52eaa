"""Energy of a window for which the nodes counted emissions, by basis."""

from __future__ import annotations

from collections import defaultdict

from wattline.contract import metrics as m
from wattline.figures import JOULES_PER_KWH
from wattline_analyzer.core.sources.promql import QueryCounter, device_increase, label_list, sum_by
from wattline_analyzer.usage.cut import FleetCut
from wattline_analyzer.usage.tallies import WindowTallies

METRICS = (m.CARBON_INTENSITY,)
_KIND = ("instance", "basis", "quality")


def emission_energy_query(cut: FleetCut) -> str:
    """Return the query for the joules with emissions by basis: emissions by the mean of the known
    intensities.

    They are exact where the intensity is constant.
    """
    counter = QueryCounter(m.EMISSIONS.name, ("instance", *m.EMISSIONS.labels))
    grams = sum_by(_KIND, device_increase(counter, cut.whole, cut.dialect))
    mean = (
        f"avg by ({label_list(_KIND)}) "
        f"(avg_over_time({m.CARBON_INTENSITY.name}{cut.whole.range})) > 0"
    )
    return sum_by(("basis",), f"{grams} / on ({label_list(_KIND)}) ({mean}) * {JOULES_PER_KWH:.0f}")


def local_emission_energy(window: WindowTallies) -> dict[str, float]:
    """Return the joules with emissions by basis, as `emission_energy_query`."""
    means: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for tally in window.of(m.CARBON_INTENSITY):
        means[tuple(tally.labels.get(name, "") for name in _KIND)].append(tally.total / tally.count)
    found: defaultdict[str, float] = defaultdict(float)
    for tally in window.of(m.EMISSIONS):
        known = means.get(tuple(tally.labels.get(name, "") for name in _KIND), ())
        mean = sum(known) / len(known) if known else 0.0
        if mean > 0:
            found[tally.labels["basis"]] += tally.rise / mean * JOULES_PER_KWH
    return dict(found)
