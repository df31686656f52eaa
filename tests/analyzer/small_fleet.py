"""Small fleet of known energy, emissions and tokens in a real Prometheus and VictoriaMetrics."""

from __future__ import annotations

import contextlib
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from tests import servers
from tests.analyzer.fleet_nodes import (
    FleetNode,
    FleetRun,
    NodeSeries,
    import_to_victoria_metrics,
    node_series,
    write_prometheus_blocks,
)
from tests.analyzer.fleet_owners import owner_series
from tests.analyzer.node import write_history
from wattline.contract.api import OTHER_RUNS
from wattline.contract.history import Series

ATTRIBUTED = "wattline_run_attributed_energy_joules_total"
RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "wattline.rules.yml"
BEGIN_S = 1_789_034_400.0
END_S = BEGIN_S + 7_200
RUN_W = 300 + 120 + 20
"""Power of a run on one GPU, with the node's CPU and DRAM."""
SCRAPE_S = 15
NODES = (
    FleetNode(
        "a:9847", BEGIN_S - 86_400, BEGIN_S - 4_200, END_S + 600, offset_s=3.2, grams_per_kwh=200.0
    ),
    FleetNode(
        "b:9847",
        BEGIN_S - 9 * 86_400,
        BEGIN_S - 4_200,
        END_S + 600,
        offset_s=7.7,
        model="NVIDIA A100",
        lost=[(BEGIN_S + 1_000, BEGIN_S + 1_500)],
        pods=[(0, "blue", BEGIN_S - 4_200, BEGIN_S + 3_000), (0, "green", BEGIN_S + 3_000, END_S)],
    ),
    FleetNode(
        "gone:9847", BEGIN_S - 30 * 86_400, BEGIN_S - 4_200, BEGIN_S + 3_000, gpus=1, offset_s=1.1
    ),
    FleetNode("new:9847", BEGIN_S + 3_000, BEGIN_S + 3_000, END_S + 600, offset_s=11.4),
    FleetNode(
        "fresh:9847",
        BEGIN_S - 86_400,
        BEGIN_S - 4_200,
        END_S + 600,
        gpus=1,
        fresh_s=BEGIN_S + 3_600,
    ),
)
SCRAPED_TWICE = NODES[2]
LATE_S = BEGIN_S + 12_000
LATE_NODE = FleetNode(
    "late:9847", BEGIN_S - 86_400, LATE_S, LATE_S + 300, gpus=1, model="SIMULATED NVIDIA H200"
)
"""Node that is first scraped after its first runs, hours after all other nodes."""
LATE_RUNS = (
    FleetRun("brief", ("late:9847",), (0,), LATE_S - 250, LATE_S - 150, {"model": "brief"}),
    FleetRun("early", ("late:9847",), (0,), LATE_S - 140, LATE_S - 20, {"model": "early"}),
    FleetRun("over", ("late:9847",), (0,), LATE_S - 10, LATE_S + 200, {"model": "over"}),
)
FULL_S = LATE_S + 7_200
FULL_NODE = FleetNode("full:9847", BEGIN_S - 86_400, FULL_S - 600, FULL_S + 1_200, gpus=1)
"""Node with a discovered run beyond the limits of its exporter, hours after all other nodes."""
FOLDED_RUN = FleetRun(
    "folded",
    ("full:9847",),
    (0,),
    FULL_S + 100,
    FULL_S + 400,
    {"discovered": "slurm", "user": "eve"},
    "slurm",
)
BARE_S = FULL_S + 7_200
BARE_NODE = FleetNode("bare:9847", BEGIN_S - 86_400, BARE_S - 600, BARE_S + 1_200, gpus=1)
"""Node with three runs of equal work, of which one has energy, hours after all other nodes."""
BARE_RUNS = tuple(
    FleetRun(
        name,
        ("bare:9847",),
        (0,),
        BARE_S + at_s,
        BARE_S + at_s + 100,
        {"model": "m5", "user": "u5"},
        "serve",
        {"generated_tokens": 4.0},
    )
    for name, at_s in (("measured", 100), ("no-series", 300), ("zero-joules", 500))
)
FINAL_REQUESTS = 500.0
"""Requests of the run `long`, reported at its end."""
TOKENS = {"generated_tokens": 100.0, "prompt_tokens": 300.0}
RUNS = (
    FleetRun(
        "long",
        ("a:9847",),
        (0, 1),
        BEGIN_S - 3_600,
        BEGIN_S + 4_200,
        {"model": "m1", "user": "u1"},
        "train",
    ),
    FleetRun(
        "lossy",
        ("b:9847",),
        (0, 1),
        BEGIN_S + 600,
        BEGIN_S + 2_400,
        {"model": "m2", "user": "u1"},
        "serve",
        TOKENS,
    ),
    FleetRun("flash", ("b:9847",), (0,), BEGIN_S + 4_001, BEGIN_S + 4_006, {"model": "m3"}),
    FleetRun(
        "two-nodes",
        ("a:9847", "b:9847"),
        (0,),
        BEGIN_S + 4_500,
        BEGIN_S + 5_400,
        {"model": "m2", "user": "u2"},
        "serve",
        {"generated_tokens": 50.0},
    ),
    FleetRun(
        "half",
        ("new:9847",),
        (0,),
        BEGIN_S + 4_000,
        BEGIN_S + 5_000,
        {"model": "m2", "user": "u3", "namespace": "own"},
    ),
    FleetRun(
        "other-half",
        ("new:9847",),
        (0,),
        BEGIN_S + 4_500,
        BEGIN_S + 5_500,
        {"model": "m2", "user": "u4"},
    ),
    FleetRun("before", ("b:9847",), (0,), BEGIN_S - 900, BEGIN_S - 300, {"model": "m4"}),
)


def fleet_series() -> list[NodeSeries]:
    """Return the series of all nodes, each scraped once."""
    series = [entry for node in NODES for entry in node_series(node, RUNS)]
    series += [entry for node in NODES for entry in owner_series(node, RUNS)]
    series += [
        *node_series(LATE_NODE, LATE_RUNS),
        *owner_series(LATE_NODE, LATE_RUNS),
        *folded_series(),
    ]
    series += bare_series()
    work_labels = {
        "__name__": "wattline_run_work_total",
        "instance": "a:9847",
        "job": "wattline",
        "run_id": "long",
    }
    t = np.arange(BEGIN_S + 4_203.2, BEGIN_S + 4_800, SCRAPE_S)
    series.append(
        NodeSeries({**work_labels, "unit": "requests"}, t, np.full(len(t), FINAL_REQUESTS))
    )
    early = {
        "__name__": "wattline_run_info",
        "instance": "b:9847",
        "job": "wattline",
        "run_id": "two-nodes",
    }
    t = np.array([BEGIN_S + 4_502.7])  # before the user was known
    series.append(NodeSeries({**early, "workload": "serve", "label_model": "m2"}, t, np.ones(1)))
    return series


def folded_series() -> list[NodeSeries]:
    """Return the series of the node whose run has no series but its attributed energy."""
    series = [*node_series(FULL_NODE, [FOLDED_RUN]), *owner_series(FULL_NODE, [FOLDED_RUN])]
    kept = [
        one
        for one in series
        if not one.labels.get("run_id") or one.labels["__name__"] == ATTRIBUTED
    ]
    return [
        NodeSeries(
            {**one.labels, "run_id": OTHER_RUNS} if one.labels.get("run_id") else one.labels,
            one.t,
            one.value,
        )
        for one in kept
    ]


def bare_series() -> list[NodeSeries]:
    """Return the series of the node with runs whose energy was not measured."""
    found = []
    for one in [*node_series(BARE_NODE, BARE_RUNS), *owner_series(BARE_NODE, BARE_RUNS)]:
        run_id, is_energy = one.labels.get("run_id"), "energy" in one.labels["__name__"]
        if run_id == "zero-joules" and is_energy:
            found.append(NodeSeries(one.labels, one.t, 0 * one.value))
        elif run_id != "no-series" or not is_energy:
            found.append(one)
    return found


def fleet_history(folder: Path) -> Path:
    """Write a history with the series of all nodes."""
    return write_samples(folder, fleet_series())


def write_samples(folder: Path, series: Iterable[NodeSeries]) -> Path:
    samples = ((one.labels, zip(one.t.tolist(), one.value.tolist(), strict=True)) for one in series)
    return write_history(folder, [Series(labels, list(pairs)) for labels, pairs in samples])


@contextlib.contextmanager
def fleet_servers(folder: Path) -> Iterator[dict[str, str]]:
    """Start both servers with the same samples and recording rules; yield their addresses by
    name.
    """
    series = fleet_series()
    series += [
        NodeSeries({**entry.labels, "job": "another"}, entry.t, entry.value)
        for entry in node_series(SCRAPED_TWICE, RUNS)
    ]
    keep = ["--storage.tsdb.retention.time=3000d"]
    for name in ("prometheus", "victoria-metrics"):
        (folder / name).mkdir()
    write_prometheus_blocks(folder / "prometheus", series)
    with servers.prometheus(folder / "prometheus", [], flags=keep) as prometheus:
        storage = folder / "prometheus" / "prometheus"
        servers.backfill_rules(prometheus, RULES, BEGIN_S - 3_600, END_S + 600, storage)
    with (
        servers.prometheus(folder / "prometheus", [], flags=keep) as prometheus,
        servers.victoria_metrics(
            folder / "victoria-metrics", [], flags=["-retentionPeriod=3000d"]
        ) as victoria_metrics,
    ):
        import_to_victoria_metrics(victoria_metrics, series)
        replay(victoria_metrics)
        yield {"prometheus": prometheus, "victoria-metrics": victoria_metrics}


def replay(address: str) -> None:
    """Evaluate the recording rules over the past with vmalert."""
    begin, end = (
        datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for t in (BEGIN_S - 3_600, END_S + 600)
    )
    call = [
        servers.require("vmalert"),
        f"-rule={RULES}",
        f"-datasource.url={address}",
        f"-remoteWrite.url={address}",
    ]
    call += [f"-replay.timeFrom={begin}", f"-replay.timeTo={end}", "-replay.rulesDelay=1ms"]
    call += ["-replay.disableProgressBar"]
    call += [f"-httpListenAddr=127.0.0.1:{servers.free_port()}"]
    subprocess.run(call, check=True, capture_output=True, timeout=120)
    urllib.request.urlopen(f"{address}/internal/force_flush").close()
