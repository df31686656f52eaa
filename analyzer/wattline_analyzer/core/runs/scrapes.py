"""Scrape interval of the instances, and the time of their next scrape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.contract import metrics as m
from wattline_analyzer.core.sample_table import rows_of
from wattline_analyzer.core.samples import distinct, sample_median
from wattline_analyzer.core.sources.base import SampleSource

AHEAD_S = 120.0
"""Maximum time by which the server's clock may be ahead of the local clock."""
PATIENCE_S = 5.0
"""Age up to which a series or a node counts as active, however short its scrape interval."""
USUAL_INTERVAL_S = 15.0
"""Scrape interval of a series with one sample only."""


@dataclass(frozen=True, slots=True)
class ScrapeTiming:
    """Scrape interval of the slowest instance, time of the newest scrape that all have, and time of
    the next scrape.

    `at_rest`: the source is an exporter's own history, which has a sample per second during runs,
    and no run is active.
    """

    interval_s: float
    newest_s: float
    due_s: float
    at_rest: bool


def scrape_timing(source: SampleSource, now_s: float, instances: set[str]) -> ScrapeTiming | None:
    """Return the timing of `instances`, of all if empty; None if nothing is scraped now."""
    table = rows_of(source.fetch([m.BUILD_INFO], {}, now_s - 600, now_s + AHEAD_S), m.BUILD_INFO)
    intervals_s: dict[str, float] = {}
    newest_s: dict[str, float] = {}
    for (instance,), rows in table.groups("instance"):
        times = distinct(rows.t)[-10:]
        spacing_s = sample_median(np.diff(times)) if len(times) > 1 else USUAL_INTERVAL_S
        if (not instances or instance in instances) and times[-1] >= now_s - max(
            3 * spacing_s, PATIENCE_S
        ):
            intervals_s[instance], newest_s[instance] = spacing_s, float(times[-1])
    if not newest_s:
        return None
    dues_s = [t_s + intervals_s[instance] for instance, t_s in newest_s.items()]
    due_s = max((due_s for due_s in dues_s if due_s > now_s - PATIENCE_S), default=now_s)
    at_rest = set(newest_s) == {""} and newest_s[""] < now_s - PATIENCE_S
    return ScrapeTiming(max(intervals_s.values()), min(newest_s.values()), due_s, at_rest)
