"""Page of a report with known values."""

from __future__ import annotations

from pathlib import Path

from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from wattline.contract import metrics as m
from wattline_analyzer.core.run_report import UserInputs
from wattline_analyzer.core.runs.load import Clock, load_run
from wattline_analyzer.core.runs.samples import fetch_chart_samples
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.html.page import html_page
from wattline_analyzer.report.plot import run_plot
from wattline_analyzer.report.timeseries import power_samples

HOSTILE = '</script><script>window.hostile = 1</script><img src="x" onerror="window.hostile = 1">'
LENGTH_S = 20
GAP_S = (8, 12)
"""Seconds after the run's start without a scrape."""
POWERS_W = (300, 100, 200)
"""Power of each GPU during the run: 6,000 J (1.667 Wh), 2,000 J and 4,000 J (1.111 Wh)."""


def _gpus() -> list[NodeGpu]:
    ends = (START_S - 1_000, START_S, START_S + LENGTH_S)
    return [
        NodeGpu(list(zip(ends, (60, power_w, 60), strict=True)), index=str(index), utilization=0.5)
        for index, power_w in enumerate(POWERS_W)
    ]


def _values(gpus, t):
    since_s = min(max(t - START_S, 0), LENGTH_S)
    phases = {HOSTILE: (min(since_s, 5), 3_000.0)} | (
        {"measure": (since_s - 5, 9_000.0)} if since_s > 5 else {}
    )
    run = NodeRun(
        labels={"model": HOSTILE},
        workload=HOSTILE,
        phases=phases if since_s else {},
        results={"loss": 0.5},
    )
    for metric, labels, value in scrape(gpus, run, t, intensity=230.0):
        limit_changed = metric is m.GPU_POWER_LIMIT and t >= START_S + 10
        yield metric, labels, 350.0 if limit_changed else value
    for gpu in gpus:
        labels, busy = {"gpu": gpu.index, "uuid": gpu.uuid}, gpu.power_w(t) > 60
        yield m.GPU_TEMPERATURE, {**labels, "sensor": "gpu"}, 70.0 if busy else 40.0
        yield m.GPU_CLOCK, {**labels, "domain": "sm"}, 1_980e6 if busy else 345e6
        yield m.GPU_CLOCK, {**labels, "domain": "memory"}, 3_201e6
        yield m.GPU_UTILIZATION, {**labels, "engine": "memory"}, 0.25
        yield m.GPU_MEMORY_USED, labels, 64 * 2.0**30 if busy else 2.0**30


def write_page(folder: Path) -> Path:
    """Write the page of three GPUs for 20 s, scraped each second but for three missed scrapes."""
    gpus = _gpus()
    times = [
        t
        for t in scrape_times(1, START_S - 10, START_S + 30)
        if not GAP_S[0] < t - START_S < GAP_S[1]
    ]
    source = HistorySource(
        write_history(folder, series_of_scrapes((t, list(_values(gpus, t))) for t in times))
    )
    try:
        frames = load_run(
            source,
            "train-1",
            86_400,
            Clock(lambda: START_S + 3_600, lambda _: None),
            lambda _: None,
        )
        for_charts = fetch_chart_samples(source, frames.raw)
    finally:
        source.close()
    report = assess(frames, UserInputs())
    plot = run_plot(report, power_samples(frames, report))
    path = folder / "report.html"
    path.write_text(html_page(report, frames, for_charts, plot))
    return path
