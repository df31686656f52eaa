"""Synthetic week of recorded series and day of emissions, both known in closed form."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.analyzer.fleet_nodes import NodeSeries
from tests.grafana.cluster import BEGIN_S
from wattline.contract import metrics as m

WEEK_S = BEGIN_S - 30 * 86_400
WEEK_END_S = WEEK_S + 7 * 86_400
NODE = {"instance": "long:9847"}
OWNER = {
    **NODE,
    "workload": "serve",
    "label_model": "llama-8b",
    "label_user": "ann",
    "label_namespace": "nlp",
}
LOW_J, HIGH_J, IDLE_J = 30_000, 150_000, 60_000
"""Energy per five minutes. Serving alternates between 100 W and 500 W; tuning takes half of that in
the first half of the week; 200 W are unattributed.
"""
DAY_S = BEGIN_S - 10 * 86_400
EMISSIONS_G = [10.0 * (hour % 7 + 1) for hour in range(26)]
"""Emissions of each hour of the day and of two further hours, in g CO2eq."""


def week() -> Iterator[NodeSeries]:
    # a sample covers the five minutes that end a minute before it
    t = np.arange(WEEK_S + 360, WEEK_END_S + 61, 300)
    serving_j = np.where(np.arange(len(t)) % 2 == 0, LOW_J, HIGH_J)
    tuned = np.where(np.arange(len(t)) < len(t) // 2, serving_j / 2, 0)
    gpu, tokens = {"component": "gpu"}, {"unit": "generated_tokens"}
    for name, labels, values in (
        (
            "instance:wattline_device_energy_joules:increase5m",
            NODE | gpu,
            serving_j + tuned + IDLE_J,
        ),
        (
            "instance:wattline_unclaimed_energy_joules:increase5m",
            NODE | gpu,
            0 * serving_j + IDLE_J,
        ),
        (
            "instance:wattline_emissions_grams:increase5m",
            NODE | gpu | {"basis": "average", "quality": "actual"},
            0 * t + 5,
        ),
        ("owner:wattline_run_attributed_energy_joules:increase5m", OWNER | gpu, serving_j),
        (
            "owner:wattline_run_attributed_energy_joules:increase5m",
            OWNER | gpu | {"workload": "tune"},
            tuned,
        ),
        ("owner:wattline_run_work:increase5m", OWNER | tokens, serving_j / 3),
    ):
        present = values > 0
        yield NodeSeries({"__name__": name, **labels}, t[present], values[present])


def day() -> Iterator[NodeSeries]:
    t = np.arange(DAY_S + 7, DAY_S + 26 * 3_600, 60)
    emitted_g = np.interp(
        t - DAY_S,
        3_600 * np.arange(len(EMISSIONS_G) + 1),
        np.concatenate([[0], np.cumsum(EMISSIONS_G)]),
    )
    labels = {**NODE, "job": "wattline", "component": "gpu", "device": "GPU-1", "basis": "average"}
    # after ten hours the provider fails and the counter continues under another quality
    actual = np.minimum(emitted_g, sum(EMISSIONS_G[:10]))
    yield NodeSeries({"__name__": m.EMISSIONS.name, **labels, "quality": "actual"}, t, actual)
    late = t >= DAY_S + 36_000
    yield NodeSeries(
        {"__name__": m.EMISSIONS.name, **labels, "quality": "static"},
        t[late],
        (emitted_g - actual)[late],
    )
