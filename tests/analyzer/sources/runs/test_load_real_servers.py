"""One run from a real Prometheus, a real VictoriaMetrics and a history file."""

import threading
import time
from dataclasses import dataclass, replace

import pytest

from analyzer.assess.run import assess
from analyzer.sources.base import FetchError, read_access
from analyzer.sources.carbon import intensity as carbon_forecast
from analyzer.sources.history import HistorySource
from analyzer.sources.prometheus import PrometheusSource
from analyzer.sources.runs.load import Clock, load_run
from exporter.contract import metrics as m
from tests import servers
from tests.analyzer.forecasts import NIGHT_FORECAST, forecast_series
from tests.analyzer.loopback import Reply, http_server
from tests.analyzer.node import (
    NodeGpu,
    NodeRun,
    exposition_text,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)

PERIOD_S = 1.73
CLOCK = Clock(time.time, time.sleep)


def bursts(start_s, duration_s, index):
    """Return a load that alternates between 640 W and 72 W, with 60 W before and after the run."""
    steps = [(start_s - 10_000, 60.0)]
    t = start_s
    while t < start_s + duration_s:
        steps += [(t, 640.0), (t + 0.6 * PERIOD_S, 72.0)]
        t += PERIOD_S
    return NodeGpu(
        [*(step for step in steps if step[0] < start_s + duration_s), (start_s + duration_s, 60.0)],
        index=index,
        limit_w=700.0,
    )


@dataclass(frozen=True)
class Live:
    """Sources of a 6 s run, its true energy, and its frames loaded right after its end."""

    prometheus: str
    victoria_metrics: str
    password_file: object
    gpus: list
    run: NodeRun
    frames: dict
    messages: dict

    @property
    def true_j(self):
        return sum(gpu.energy_j(self.run.end_s) - gpu.energy_j(self.run.start_s) for gpu in self.gpus)

    def victoria_metrics_source(self):
        return PrometheusSource(
            f"{self.victoria_metrics}/vm", read_access(f"wattline:{self.password_file}", None, [], None), 10
        )


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    servers.require("prometheus"), servers.require("victoria-metrics")
    start_s = round(time.time() + 5, 3)
    run = NodeRun(start_s=start_s, end_s=round(start_s + 6.2, 3), uncertainty_j=4.0)
    gpus = [bursts(start_s, 6.2, str(index)) for index in range(2)]
    gone = threading.Event()

    def respond(path, parameters):
        exported_run = replace(run, end_s=run.start_s - 1_000) if gone.is_set() else run
        text = exposition_text([*scrape(gpus, exported_run, time.time()), *forecast_series(NIGHT_FORECAST)])
        return Reply(200, text.encode(), "text/plain; version=0.0.4")

    password_file = folder / "password"
    password_file.write_text("s3cret")
    guarded = ["-http.pathPrefix=/vm", "-httpAuth.username=wattline", "-httpAuth.password=s3cret"]
    for name in ("prometheus", "victoria-metrics"):
        (folder / name).mkdir()
    with (
        http_server(respond) as (target, _),
        servers.prometheus(folder / "prometheus", [target]) as prometheus,
        servers.victoria_metrics(folder / "victoria-metrics", [target], flags=guarded) as victoria_metrics,
    ):
        live = Live(prometheus, victoria_metrics, password_file, gpus, run, {}, {})
        time.sleep(max(run.end_s - time.time(), 0))
        _load_all(live)
        yield live
        gone.set()


def _load_all(live):
    """Load the run from both servers right after its end, before the last scrape."""

    def read(name, source):
        live.messages[name] = []
        try:
            live.frames[name] = load_run(source, live.run.run_id, 3_600, CLOCK, live.messages[name].append)
        finally:
            source.close()

    sources = {"prometheus": PrometheusSource(live.prometheus), "victoria-metrics": live.victoria_metrics_source()}
    threads = [threading.Thread(target=read, args=pair) for pair in sources.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def history(live, tmp_path):
    times = scrape_times(1, live.run.start_s - 20.4, live.run.end_s + 20)
    return write_history(tmp_path, series_of_scrapes((t, scrape(live.gpus, live.run, t)) for t in times))


@pytest.mark.parametrize("server", ["prometheus", "victoria-metrics"])
def test_report_after_end_waits_for_scrape_and_logs(live, server):
    assert len(live.messages[server]) == 1
    assert "waiting up to" in live.messages[server][0]
    assert assess(live.frames[server]).ended_at_s == live.run.end_s


def test_headline_is_the_same_from_all_sources(live, history):
    file = HistorySource(history)
    stored = assess(load_run(file, live.run.run_id, 3_600, CLOCK, lambda _: None))
    file.close()

    for server in ("prometheus", "victoria-metrics"):
        report = assess(live.frames[server])
        assert report.headline.value == pytest.approx(stored.headline.value, rel=1e-9)
        assert report.headline.value == pytest.approx(live.true_j, rel=1e-9)
        assert report.headline.half == 8.0
        assert [work.amount for work in report.work] == [1_000]


@pytest.mark.parametrize("server", ["prometheus", "victoria-metrics"])
def test_own_figure_at_1_s_scrapes_bounds_true_energy(live, server):
    bound = assess(live.frames[server]).from_raw_samples

    assert bound.low <= live.true_j <= bound.high
    assert bound.high - bound.low < live.true_j


@pytest.mark.parametrize("server", ["prometheus", "victoria-metrics"])
def test_raw_samples_equal_scraped_samples(live, server):
    rows = live.frames[server].raw
    power = rows[(rows["metric"] == m.GPU_POWER.name) & (rows["uuid"] == live.gpus[0].uuid)].sort_values("t")

    assert set(power["value"]) <= {60.0, 72.0, 640.0}
    assert power["t"].is_unique
    assert power["t"].diff().dropna().between(0.9, 1.1).mean() > 0.8
    assert rows["value"].notna().all()


def test_victoria_metrics_without_password_is_one_line(live):
    source = PrometheusSource(f"{live.victoria_metrics}/vm")

    with pytest.raises(FetchError, match=r"denied access \(HTTP 401\)"):
        source.fetch([m.BUILD_INFO], {}, time.time() - 60, time.time())
    source.close()


@pytest.mark.parametrize("flavour", ["prometheus", "victoria-metrics"])
def test_stale_markers_are_not_samples(tmp_path, flavour):
    gone = threading.Event()
    gpu = NodeGpu([(0, 100.0)])

    def respond(path, parameters):
        gpus = [] if gone.is_set() else [gpu]
        return Reply(
            200, exposition_text(scrape(gpus, NodeRun(end_s=0), time.time())).encode(), "text/plain; version=0.0.4"
        )

    server = servers.prometheus if flavour == "prometheus" else servers.victoria_metrics
    with http_server(respond) as (target, _), server(tmp_path, [target]) as address:
        source = PrometheusSource(address)
        wait_for(source, m.GPU_POWER, after_s=time.time())
        gone.set()
        gone_s = time.time()
        wait_for(source, m.BUILD_INFO, after_s=gone_s + 1.5)
        power = source.fetch([m.GPU_POWER], {}, gone_s - 60, time.time())
        source.close()

    assert set(power["value"]) == {100.0}
    assert power["t"].max() <= gone_s + 0.1


def wait_for(source, metric, after_s):
    """Wait until a sample of the metric is newer than `after_s`, at most until the test's timeout."""
    while source.fetch([metric], {}, after_s, time.time()).empty:
        time.sleep(0.2)


@pytest.mark.parametrize("server", ["prometheus", "victoria-metrics"])
def test_fetch_forecast_finds_newest_scrape_on_each_server(live, server):
    source = PrometheusSource(live.prometheus) if server == "prometheus" else live.victoria_metrics_source()
    try:
        forecast = carbon_forecast.fetch_forecast(source, time.time(), "average", None)
    finally:
        source.close()

    assert (forecast.provider, forecast.region) == ("gb", "GB")
    assert [slot.grams_per_kwh for slot in forecast.slots] == NIGHT_FORECAST[1:]
    assert forecast.slots[0].start_s == pytest.approx(forecast.issued_s + 1_800, abs=1e-3)
