"""Small fleet of known energy, emissions and tokens in a real Prometheus and VictoriaMetrics."""

from __future__ import annotations

import contextlib
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.sources.fleet.results import FleetRequest, fetch_fleet
from analyzer.sources.promql import InstantServer
from analyzer.studies.fleet import Fleet, FleetGroup, Keys, fleet
from tests import servers
from tests.analyzer.fleet_nodes import (
    FleetNode,
    FleetRun,
    NodeSeries,
    import_to_victoria_metrics,
    node_series,
    write_prometheus_blocks,
)

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "wattline.rules.yml"
BEGIN_S = 1_789_034_400.0
END_S = BEGIN_S + 7_200
RUN_W = 300 + 120 + 20
"""Power of a run on one GPU, with the node's CPU and DRAM."""
SCRAPE_S = 15
NODES = (
    FleetNode("a:9847", BEGIN_S - 86_400, BEGIN_S - 4_200, END_S + 600, offset_s=3.2, grams_per_kwh=200.0),
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
    FleetNode("gone:9847", BEGIN_S - 30 * 86_400, BEGIN_S - 4_200, BEGIN_S + 3_000, gpus=1, offset_s=1.1),
    FleetNode("new:9847", BEGIN_S + 3_000, BEGIN_S + 3_000, END_S + 600, offset_s=11.4),
    FleetNode("fresh:9847", BEGIN_S - 86_400, BEGIN_S - 4_200, END_S + 600, gpus=1, fresh_s=BEGIN_S + 3_600),
)
SCRAPED_TWICE = NODES[2]
LATE_S = BEGIN_S + 12_000
LATE_NODE = FleetNode("late:9847", BEGIN_S - 86_400, LATE_S, LATE_S + 300, gpus=1, model="SIMULATED NVIDIA H200")
"""Node that is first scraped after its first runs, hours after all other nodes."""
LATE_RUNS = (
    FleetRun("brief", ("late:9847",), (0,), LATE_S - 250, LATE_S - 150, {"model": "brief"}),
    FleetRun("early", ("late:9847",), (0,), LATE_S - 140, LATE_S - 20, {"model": "early"}),
    FleetRun("over", ("late:9847",), (0,), LATE_S - 10, LATE_S + 200, {"model": "over"}),
)
FINAL_REQUESTS = 500.0
"""Requests of the run `long`, reported at its end."""
TOKENS = {"generated_tokens": 100.0, "prompt_tokens": 300.0}
RUNS = (
    FleetRun("long", ("a:9847",), (0, 1), BEGIN_S - 3_600, BEGIN_S + 4_200, {"model": "m1", "user": "u1"}, "train"),
    FleetRun(
        "lossy", ("b:9847",), (0, 1), BEGIN_S + 600, BEGIN_S + 2_400, {"model": "m2", "user": "u1"}, "serve", TOKENS
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
        "half", ("new:9847",), (0,), BEGIN_S + 4_000, BEGIN_S + 5_000, {"model": "m2", "user": "u3", "namespace": "own"}
    ),
    FleetRun("other-half", ("new:9847",), (0,), BEGIN_S + 4_500, BEGIN_S + 5_500, {"model": "m2", "user": "u4"}),
    FleetRun("before", ("b:9847",), (0,), BEGIN_S - 900, BEGIN_S - 300, {"model": "m4"}),
)


@contextlib.contextmanager
def fleet_servers(folder: Path) -> Iterator[dict[str, str]]:
    """Start both servers with the same samples and recording rules; yield their addresses by name."""
    series = [entry for node in NODES for entry in node_series(node, RUNS)]
    series += [
        NodeSeries({**entry.labels, "job": "another"}, entry.t, entry.value)
        for entry in node_series(SCRAPED_TWICE, RUNS)
    ]
    series += node_series(LATE_NODE, LATE_RUNS)
    work_labels = {"__name__": "wattline_run_work_total", "instance": "a:9847", "job": "wattline", "run_id": "long"}
    t = np.arange(BEGIN_S + 4_203.2, BEGIN_S + 4_800, SCRAPE_S)
    series.append(NodeSeries({**work_labels, "unit": "requests"}, t, np.full(len(t), FINAL_REQUESTS)))
    keep = ["--storage.tsdb.retention.time=3000d"]
    for name in ("prometheus", "victoria-metrics"):
        (folder / name).mkdir()
    write_prometheus_blocks(folder / "prometheus", series)
    with servers.prometheus(folder / "prometheus", [], flags=keep) as prometheus:
        storage = folder / "prometheus" / "prometheus"
        servers.backfill_rules(prometheus, RULES, BEGIN_S - 3_600, END_S + 600, storage)
    with (
        servers.prometheus(folder / "prometheus", [], flags=keep) as prometheus,
        servers.victoria_metrics(folder / "victoria-metrics", [], flags=["-retentionPeriod=3000d"]) as victoria_metrics,
    ):
        import_to_victoria_metrics(victoria_metrics, series)
        replay(victoria_metrics)
        yield {"prometheus": prometheus, "victoria-metrics": victoria_metrics}


def replay(address: str) -> None:
    """Evaluate the recording rules over the past with vmalert."""
    begin, end = (datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for t in (BEGIN_S - 3_600, END_S + 600))
    call = [servers.require("vmalert"), f"-rule={RULES}", f"-datasource.url={address}", f"-remoteWrite.url={address}"]
    call += [f"-replay.timeFrom={begin}", f"-replay.timeTo={end}", "-replay.rulesDelay=1ms"]
    call += ["-replay.disableProgressBar"]
    call += [f"-httpListenAddr=127.0.0.1:{servers.free_port()}"]
    subprocess.run(call, check=True, capture_output=True, timeout=120)
    urllib.request.urlopen(f"{address}/internal/force_flush").close()


def fetch_small_fleet(
    address: str, by: str, *, rules: bool = False, carbon: float | None = None, **options: Any
) -> Fleet:
    """Query the fleet; `options` are fields of a FleetRequest, and `say`."""
    log: Callable[[str], None] = options.pop("say", lambda _: None)
    keys = tuple(by.split(","))
    window = {"policy": "idle_shared", "start_s": BEGIN_S, "end_s": END_S, **options}
    with contextlib.closing(InstantServer(address)) as server:
        counts = fetch_fleet(server, FleetRequest(keys, **window, emissions=carbon is None, rules=rules), log)
    return fleet(keys, window["policy"], counts, carbon)


def groups_by_keys(result: Fleet) -> dict[Keys, FleetGroup]:
    return {group.keys: group for group in result.groups}
