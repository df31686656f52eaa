"""One run from a real Prometheus, a real VictoriaMetrics and a history file."""

import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests import servers
from tests.analyzer.forecasts import NIGHT_FORECAST, forecast_series
from tests.analyzer.loopback import Reply, http_server
from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    exposition_text,
    run_series,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from tests.polling import eventually
from wattline.contract import metrics as m
from wattline_analyzer.carbon import fetch as carbon_forecast
from wattline_analyzer.core.runs.load import Clock, load_run
from wattline_analyzer.core.sample_table import rows_of, samples
from wattline_analyzer.core.sources.base import FetchError, read_access
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_analyzer.report.assess import assess

PERIOD_S = 1.73
LENGTH_S = 6.2
CLOCK = Clock(time.time, time.sleep)
NO_RUN = NodeRun(end_s=START_S)


def bursts(since_s, start_s, index):
    """Return a load that alternates between 640 W and 72 W, with 60 W before and after the run."""
    steps, t = [(since_s, 60.0)], start_s
    while t < start_s + LENGTH_S:
        steps += [(t, 640.0), (t + 0.6 * PERIOD_S, 72.0)]
        t += PERIOD_S
    return NodeGpu(
        [*(step for step in steps if step[0] < start_s + LENGTH_S), (start_s + LENGTH_S, 60.0)],
        index=index,
        limit_w=700.0,
    )


@dataclass
class NodePage:
    """Metrics page of the node for one server, which shows the end of the run once `end_shown` is
    set.
    """

    since_s: float
    run: NodeRun | None = None
    gpus: list = field(default_factory=list)
    end_shown: threading.Event = field(default_factory=threading.Event)
    answers: list = field(default_factory=list)
    """Energy and power of the first GPU in each answer."""

    def __post_init__(self):
        self.gpus = [
            NodeGpu([(self.since_s, 60.0)], index=str(index), limit_w=700.0) for index in range(2)
        ]

    def begin(self, run, gpus):
        self.gpus, self.run = gpus, run

    def respond(self, path, parameters):
        t, gpus, run = time.time(), self.gpus, self.run
        values = [*scrape(gpus, NO_RUN, t), *forecast_series(NIGHT_FORECAST)]
        if run and t >= run.start_s:
            values += run_series(
                gpus, run, t if self.end_shown.is_set() else min(t, run.end_s - 0.001)
            )
        self.answers.append((gpus[0].energy_j(t), gpus[0].power_w(t)))
        return Reply(200, exposition_text(values).encode(), "text/plain; version=0.0.4")

    def wait_for_answers(self, number):
        eventually(lambda: len(self.answers) >= number, f"{number} scrapes")


class ScrapeClock:
    """Clock whose sleeps last until the next scrape: a busy machine does not use up the time to
    wait for scrapes.
    """

    waits = True

    def __init__(self, page):
        self._page = page
        self._now_s = time.time()

    def now(self):
        return self._now_s

    def sleep(self, duration_s):
        number = len(self._page.answers) + 1
        time.sleep(duration_s)
        self._page.wait_for_answers(number)
        self._now_s += duration_s


@dataclass(frozen=True)
class Live:
    """Sources of a 6 s run, its true energy, and its frames loaded right after its end."""

    prometheus: str
    victoria_metrics: str
    password_file: object
    gpus: list
    run: NodeRun
    pages: dict
    frames: dict = field(default_factory=dict)
    messages: dict = field(default_factory=dict)

    @property
    def true_j(self):
        return sum(
            gpu.energy_j(self.run.end_s) - gpu.energy_j(self.run.start_s) for gpu in self.gpus
        )

    def victoria_metrics_source(self):
        return PrometheusSource(
            f"{self.victoria_metrics}/vm",
            read_access(f"wattline:{self.password_file}", None, [], None),
            10,
        )


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    servers.require("prometheus"), servers.require("victoria-metrics")
    since_s = time.time() - 10_000
    pages = {name: NodePage(since_s) for name in ("prometheus", "victoria-metrics")}
    password_file = folder / "password"
    password_file.write_text("s3cret")
    guarded = ["-http.pathPrefix=/vm", "-httpAuth.username=wattline", "-httpAuth.password=s3cret"]
    for name in pages:
        (folder / name).mkdir()
    with (
        http_server(pages["prometheus"].respond) as (target, _),
        http_server(pages["victoria-metrics"].respond) as (other_target, _),
        servers.prometheus(folder / "prometheus", [target]) as prometheus,
        servers.victoria_metrics(
            folder / "victoria-metrics", [other_target], flags=guarded
        ) as victoria_metrics,
    ):
        for page in pages.values():
            page.wait_for_answers(2)
        start_s = round(time.time() + 1, 3)
        run = NodeRun(start_s=start_s, end_s=round(start_s + LENGTH_S, 3), uncertainty_j=4.0)
        gpus = [bursts(since_s, start_s, str(index)) for index in range(2)]
        for page in pages.values():
            page.begin(run, gpus)
        live = Live(prometheus, victoria_metrics, password_file, gpus, run, pages)
        time.sleep(max(run.end_s - time.time(), 0))
        _load_all(live)
        yield live


def _load_all(live):
    """Load the run from both servers after its end; its end is exported once the loading waits for
    it.
    """

    def read(name, source):
        page, messages = live.pages[name], live.messages.setdefault(name, [])

        def log(message):
            messages.append(message)
            page.end_shown.set()

        page.wait_for_answers(len(page.answers) + 2)  # the first of them may be from before the end
        try:
            live.frames[name] = load_run(source, live.run.run_id, 3_600, ScrapeClock(page), log)
        finally:
            source.close()

    sources = {
        "prometheus": PrometheusSource(live.prometheus),
        "victoria-metrics": live.victoria_metrics_source(),
    }
    threads = [threading.Thread(target=read, args=pair) for pair in sources.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def history(live, tmp_path):
    times = scrape_times(1, live.run.start_s - 20.4, live.run.end_s + 20)
    return write_history(
        tmp_path, series_of_scrapes((t, scrape(live.gpus, live.run, t)) for t in times)
    )


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
        assert report.headline.half_width == 8.0  # ± 4 J of two GPUs
        assert [work.amount for work in report.work] == [1_000]


@pytest.mark.parametrize("server", ["prometheus", "victoria-metrics"])
def test_own_figure_at_1_s_scrapes_bounds_true_energy(live, server):
    bound = assess(live.frames[server]).energies.from_raw_samples

    assert bound.low <= live.true_j <= bound.high
    assert bound.high - bound.low < live.true_j


@pytest.mark.parametrize("server", ["prometheus", "victoria-metrics"])
def test_raw_samples_equal_scraped_samples(live, server):
    rows, uuid = live.frames[server].raw, live.gpus[0].uuid
    power, energy = (samples(rows, metric, uuid=uuid) for metric in (m.GPU_POWER, m.GPU_ENERGY))
    assert len(power) == len(rows_of(rows, m.GPU_POWER, uuid=uuid))  # no two at one time
    newest_s = min(
        power.t[-1], energy.t[-1]
    )  # VictoriaMetrics may show only a part of the newest scrape
    assert newest_s >= live.run.end_s
    power, energy = (one.between(0, newest_s) for one in (power, energy))
    energies_j, powers_w = np.array(live.pages[server].answers).T
    places = np.abs(energies_j[:, None] - energy.value).argmin(axis=0)

    assert set(power.value) <= {60.0, 72.0, 640.0}
    assert power.t.tolist() == energy.t.tolist()
    assert energies_j[places] == pytest.approx(energy.value, rel=1e-9)  # VictoriaMetrics rounds
    assert powers_w[places].tolist() == power.value.tolist()
    assert (np.diff(places) > 0).all()
    assert len(places) > max(0.8 * (places[-1] - places[0]), LENGTH_S - 1)  # a scrape may fail
    assert np.isfinite(rows.value).all()


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
            200,
            exposition_text(scrape(gpus, NodeRun(end_s=0), time.time())).encode(),
            "text/plain; version=0.0.4",
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

    assert set(power.value) == {100.0}
    assert power.t.max() <= gone_s + 0.1


def wait_for(source, metric, after_s):
    """Wait until a sample of the metric is newer than `after_s`, at most until the test's
    timeout.
    """
    while not len(source.fetch([metric], {}, after_s, time.time())):
        time.sleep(0.2)


@pytest.mark.parametrize("server", ["prometheus", "victoria-metrics"])
def test_fetch_forecast_finds_newest_scrape_on_each_server(live, server):
    source = (
        PrometheusSource(live.prometheus)
        if server == "prometheus"
        else live.victoria_metrics_source()
    )
    try:
        forecast = carbon_forecast.fetch_forecast(source, time.time(), "average", None)
    finally:
        source.close()

    assert (forecast.provider, forecast.region) == ("gb", "GB")
    assert [slot.grams_per_kwh for slot in forecast.slots] == NIGHT_FORECAST[1:]
    assert forecast.slots[0].start_s == pytest.approx(forecast.issued_s + 1_800, abs=1e-3)
