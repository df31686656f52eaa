"""A week of what the rules record, and a day of grams, each known in closed form."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from exporter.contract import metrics as m
from tests.analyzer.fleet_nodes import Series
from tests.grafana.cluster import BEGIN_S

WEEK_S = BEGIN_S - 30 * 86_400
WEEK_END_S = WEEK_S + 7 * 86_400
NODE = {"instance": "long:9847"}
OWNER = {**NODE, "workload": "serve", "label_model": "llama-8b", "label_user": "ann", "label_namespace": "nlp"}
LOW_J, HIGH_J, IDLE_J = 30_000, 150_000, 60_000
"""By turns, five minutes each: 100 W and 500 W of serving, and in the first half of the week half as much of tuning; of
no run 200 W all the time.
"""
DAY_S = BEGIN_S - 10 * 86_400
GRAMS = [10.0 * (hour % 7 + 1) for hour in range(26)]
"""In each hour of the day and two hours more."""


def week() -> Iterator[Series]:
    # a sample is of the five minutes that end a minute before it
    t = np.arange(WEEK_S + 360, WEEK_END_S + 61, 300)
    served = np.where(np.arange(len(t)) % 2 == 0, LOW_J, HIGH_J)
    tuned = np.where(np.arange(len(t)) < len(t) // 2, served / 2, 0)
    gpu, tokens = {"component": "gpu"}, {"unit": "generated_tokens"}
    for name, labels, values in (
        ("instance:wattline_device_energy_joules:increase5m", NODE | gpu, served + tuned + IDLE_J),
        ("instance:wattline_unclaimed_energy_joules:increase5m", NODE | gpu, 0 * served + IDLE_J),
        (
            "instance:wattline_emissions_grams:increase5m",
            NODE | gpu | {"basis": "average", "quality": "actual"},
            0 * t + 5,
        ),
        ("owner:wattline_run_attributed_energy_joules:increase5m", OWNER | gpu, served),
        ("owner:wattline_run_attributed_energy_joules:increase5m", OWNER | gpu | {"workload": "tune"}, tuned),
        ("owner:wattline_run_work:increase5m", OWNER | tokens, served / 3),
    ):
        there = values > 0
        yield Series({"__name__": name, **labels}, t[there], values[there])


def day() -> Iterator[Series]:
    t = np.arange(DAY_S + 7, DAY_S + 26 * 3_600, 60)
    grams = np.interp(t - DAY_S, 3_600 * np.arange(len(GRAMS) + 1), np.concatenate([[0], np.cumsum(GRAMS)]))
    own = {**NODE, "job": "wattline", "component": "gpu", "device": "GPU-1", "basis": "average"}
    # after ten hours the provider is lost: the same counter goes on under another quality
    actual = np.minimum(grams, sum(GRAMS[:10]))
    yield Series({"__name__": m.EMISSIONS.name, **own, "quality": "actual"}, t, actual)
    late = t >= DAY_S + 36_000
    yield Series({"__name__": m.EMISSIONS.name, **own, "quality": "static"}, t[late], (grams - actual)[late])
