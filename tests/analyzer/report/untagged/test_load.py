"""Ranges by the command line, of an active service, and in a history file."""

import json
import time
from contextlib import closing

from tests import servers
from tests.analyzer.loopback import Reply, http_server
from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from tests.analyzer.report.untagged import foreign_exporters as foreign
from tests.analyzer.report.untagged.foreign_exporters import END_S, TRUE_ENERGY_J
from wattline.contract import metrics as m
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.assess_untagged import range_report
from wattline_analyzer.report.untagged.load import load_range
from wattline_analyzer.report.untagged.request import RangeRequest

POWER = m.Metric("DCGM_FI_DEV_POWER_USAGE", "gauge", (), "")


def test_report_range_prints_json_and_writes_files(analyzer, prometheus, tmp_path):
    out = tmp_path / "out"
    begin = [
        "--start",
        "2026-09-10T00:26:40Z",
        "--end",
        str(int(END_S)),
        "--matching",
        'case="kepler"',
    ]

    completed = analyzer("report", "--source", prometheus, *begin, "--format", "json", "--out", out)

    assert completed.returncode == 0, completed.stderr
    document = json.loads(completed.stdout)
    assert document["run_id"] == "range-20260910T002640Z-600s"
    assert document["untagged_range"] is True
    assert (
        abs(document["energy"]["gpu"]["energy_joules"] - TRUE_ENERGY_J)
        < document["energy"]["gpu"]["energy_uncertainty_joules"]
    )
    assert {path.name for path in out.iterdir()} >= {"report.html", "timeseries.csv", "metrics.yml"}
    assert "kepler on gpu01" in completed.stderr


def test_range_name_is_independent_of_last_scrape(analyzer, tmp_path):
    """A range until now ends with the last scrape, 40.7 s after its start."""
    gpu = NodeGpu([(START_S - 1_000, 60)])
    times = scrape_times(1, START_S - 60.3, START_S + 40.7)
    history = write_history(
        tmp_path, series_of_scrapes((t, scrape([gpu], NodeRun(end_s=0), t)) for t in times)
    )

    completed = analyzer("report", "--source", history, "--start", START_S, "--format", "json")

    assert json.loads(completed.stdout)["run_id"] == "range-20260910T002640Z-40s"
    assert completed.stderr == "analyzer: range-20260910T002640Z-40s: wattline on this node\n"


def test_range_of_active_service_ends_with_last_scrape(tmp_path):
    """A GPU alternates between 640 W and 72 W, is read every 2 s and scraped every second by a real
    Prometheus.
    """
    begun_s = time.time()
    node_gpu = NodeGpu(
        [(begun_s - 1_000 + k, 640.0 if k % 2 else 72.0) for k in range(1_200)], limit_w=700.0
    )

    def respond(path, parameters):
        stdout = foreign.untyped_exposition(foreign.dcgm(time.time(), node_gpu, refresh_s=2.0))
        return Reply(200, stdout.encode(), "text/plain; version=0.0.4")

    with (
        http_server(respond) as (target, _),
        servers.prometheus(tmp_path, [target]) as address,
        closing(PrometheusSource(address)) as source,
    ):
        deadline_s = begun_s + 60
        while True:
            now_s = time.time()
            samples = source.fetch([POWER], {}, begun_s, now_s)
            if len(samples) and samples.t.max() - samples.t.min() > 14:
                break
            assert time.time() < deadline_s
            time.sleep(0.5)
        start_s = float(samples.t.min()) + 5
        ranged = load_range(source, RangeRequest(start_s, now_s, until_now=True), lambda _: None)
    report = range_report(assess(ranged.recorded), ranged.quality)

    assert start_s + 5 < report.ended_at_s <= now_s
    true_j = node_gpu.energy_j(report.ended_at_s) - node_gpu.energy_j(start_s)
    assert report.energies.from_raw_samples.low <= true_j <= report.energies.from_raw_samples.high
    assert report.instances == ("gpu01",)


def test_range_from_history_file(analyzer, tmp_path):
    """Two GPUs draw 60 W, and 300 W from START_S on: 6,000 J each in 20 s."""
    gpus = [
        NodeGpu([(START_S - 1_000, 60), (START_S, 300)], index=str(index)) for index in range(2)
    ]
    times = scrape_times(1, START_S - 60.5, START_S + 60)
    history = write_history(
        tmp_path, series_of_scrapes((t, scrape(gpus, NodeRun(end_s=0), t)) for t in times)
    )
    span = ["--start", START_S, "--end", START_S + 20]

    completed = analyzer(
        "report", "--source", history, *span, "--gpus", gpus[1].uuid, "--format", "json"
    )
    missing = analyzer(
        "report", "--source", history, "--start", START_S + 5_000, "--end", START_S + 6_000
    )

    assert completed.returncode == 0, completed.stderr
    energy = json.loads(completed.stdout)["energy"]["gpu"]
    assert abs(energy["energy_joules"] - 6_000) <= energy["energy_uncertainty_joules"] < 1_500
    assert missing.returncode == 1
    assert missing.stderr.count("\n") == 1
    assert "no energy and no power as wattline, dcgm-exporter" in missing.stderr
