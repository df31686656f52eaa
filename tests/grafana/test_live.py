"""Dashboards on live data of a real exporter, scraped by Prometheus and VictoriaMetrics."""

import time
import urllib.request

import pytest

from tests import daemon, servers
from tests.grafana.panel_values import View
from tests.grafana.query import boards, fetch, fill_variables, panels
from tests.polling import eventually
from wattline_exporter.simulation import Square

LABELS = {
    "experiment": "caps",
    "model": "llama-8b",
    "power_limit_watts": "400",
    "tenant": "chat",
    "mps": "on",
}
WITHOUT_DATA = {
    "Power of CPUs": "a node may have no RAPL",
    "Forecast": "a constant intensity has no forecast",
    "Age of the provider's data": "a constant intensity has no provider",
    "Failed or late reads": "a healthy node has none",
    "Emissions by model": "recording rules are not evaluated here",
    "Emissions by hour": "it needs a complete hour",
    "Unattributed GPU energy": "new counters of owners stay at 0 for 65 s",
    "Silent GPUs": "all GPUs respond",
    "XID errors": "a healthy GPU has none",
    "Clock event reasons by node": "it needs five minutes",
    "GPUs by state": "no idle GPU is held",
    "Power of idle GPUs above deep idle": "no idle GPU is held",
    **dict.fromkeys(
        ("Held and idle GPUs", "Execution-idle GPUs", "Runs with idle GPUs"), "no idle GPU is held"
    ),
    "Pods with idle GPUs": "the node is not part of a cluster",
    **dict.fromkeys(
        ("GPUs below their default limit", "Power limits below the default"),
        "all limits are the default",
    ),
    **dict.fromkeys(
        (
            "Energy of a request",
            "Mean energy of a request",
            "Power of requests",
            "Requests per second",
            "Energy of requests by user",
        ),
        "the server reports no requests; their values are in test_queries",
    ),
    "Requests that do not count": "the server reports no requests",
    **dict.fromkeys(
        ("Throttled GPUs", "Throttled GPUs by reason", "Throttled nodes"), "no GPU is throttled"
    ),
}
AFTER_END = {
    "Results",
    "Energy per unit of work",
    "Throughput",
    "Energy of the phase measure",
    "Duration of the phase measure",
    "Power limit of least energy",
    "Runs of each power limit",
    "Time and energy per unit of work, by GPU",
}
"""Panels that show ended runs only."""


def panels_without_data(server, among=None):
    """Return the titles of panels with a query without results, of all panels or of those with the
    titles `among`.
    """
    now_s, empty = time.time(), set()
    for uid, board in boards().items():
        if uid == "wattline-fleet":  # it needs recording rules
            continue
        for panel in panels(board):
            if among is not None and panel["title"] not in among:
                continue
            for target in panel["targets"]:
                query = fill_variables(
                    target["expr"], run="live", __range="60s", __rate_interval="10s"
                )
                if not fetch(server, "query", query=query, time=now_s)["result"]:
                    empty.add(panel["title"])
    return empty - WITHOUT_DATA.keys()


@pytest.mark.parametrize("kind", ["prometheus", "victoria-metrics"])
def test_dashboards_show_a_live_run(tmp_path, kind):
    start = servers.prometheus if kind == "prometheus" else servers.victoria_metrics
    flags = [] if kind == "prometheus" else ["-search.latencyOffset=0s"]
    with (
        daemon.daemon(tmp_path, "--simulate", "3xH200", "--carbon.intensity", "230") as exporter,
        start(tmp_path, [exporter.url.removeprefix("http://")], flags=flags) as server,
    ):
        with exporter.simulation() as simulation:
            for gpu in (0, 1):  # the third stays idle
                simulation.set_load(gpu, Square(560, 640, 1.73))
        body = {"workload": "llm-server", "labels": LABELS, "gpus": ["0"], "run_id": "live"}
        assert exporter.post("/api/v1/runs", body)[0] == 201
        exporter.post("/api/v1/runs/live/phase", {"name": "measure"})
        tokens, missing = 0, None

        def shown():
            nonlocal tokens, missing
            tokens += 100
            exporter.post(
                "/api/v1/runs/live/work", {"contributor": "one", "generated_tokens": tokens}
            )
            if kind == "victoria-metrics":  # which delays new samples by some seconds
                urllib.request.urlopen(f"{server}/internal/force_flush").close()
            missing = panels_without_data(server, missing)
            if missing <= AFTER_END:  # those that had data before may have none now
                missing = panels_without_data(server)
            return missing <= AFTER_END

        eventually(
            shown,
            "every panel has data",
            lambda: f"none in {panels_without_data(server)}\n{exporter.log()}",
        )
        exporter.post("/api/v1/runs/live/end", {"outcome": "ok", "results": {"loss": 0.5}})
        eventually(
            lambda: not panels_without_data(server, AFTER_END),
            "the panels of ended runs have data",
            exporter.log,
        )
        compare_with_ledger(
            View(server, time.time(), 600), exporter.get("/api/v1/runs/live")[1], tokens
        )


def compare_with_ledger(view, run, tokens):
    """Compare panels with the ledger; one GPU alternates between 560 W and 640 W."""
    (joules,) = run["energy_joules"]["gpu"].values()
    row = view.table("wattline-runs", "Runs", "run")["live"]
    sweep_folder = view.table("wattline-sweep", "Power limit of least energy", "workload")[
        "llm-server"
    ]
    by_gpu = view.table("wattline-variability", "Time and energy per unit of work, by GPU", "GPU")[
        "0"
    ]

    assert joules == pytest.approx(600 * run["duration_seconds"], rel=0.1)
    assert row["energy, GPUs"] == pytest.approx(joules)
    assert row["attributed share of GPUs"] == pytest.approx(
        joules, rel=0.1
    )  # attributed sample by sample
    assert row["duration"] == pytest.approx(run["duration_seconds"])
    assert row["per unit"] == pytest.approx(
        joules / tokens, rel=0.02
    )  # of the phase, without the time before it
    assert row["emissions"] == pytest.approx(row["energy, all devices"] / 3.6e6 * 230)
    assert row["start"] == pytest.approx(run["started_at"] * 1_000)
    # without the time before the phase started
    assert sweep_folder["power limit, W"] == by_gpu["power limit, W"] == "400"
    assert by_gpu["energy per unit"] == pytest.approx(joules / tokens, rel=0.1)
    assert sweep_folder["per unit"] == pytest.approx(
        by_gpu["energy per unit"], rel=0.02
    )  # of the whole run
    assert by_gpu["time per unit"] == pytest.approx(run["duration_seconds"] / tokens, rel=0.1)
