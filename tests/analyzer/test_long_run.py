"""A run with more samples than are kept has the report that all of its samples give."""

import math
from dataclasses import replace

import numpy as np
import pytest

from analyzer.assess.run import assess
from analyzer.energy.throttling import Seen
from analyzer.model.samples import samples, tidy
from analyzer.model.timeline import windows
from analyzer.output.html.charts import report_charts
from analyzer.sources.downsample import MAX_UNCHANGED
from analyzer.sources.runs.load import MARGIN_S, Clock, load_run
from analyzer.sources.runs.sweeps import with_throttling_samples
from exporter.contract import metrics as m
from tests.bench import long_run
from tests.bench.long_run import Stored, uuid

START_S = 1_789_000_000.0
RUN_S = 30_000
SLOT_S = 1_700
"""No slot begins where a bucket does."""


class StoredSource:
    """What a server would hand out, in parts of two hours; counts the samples."""

    name = "stored"

    def __init__(self, series):
        self.series = [
            ({"__name__": one.metric.name, **one.labels}, one.t_ms / 1_000, np.asarray(one.value)) for one in series
        ]
        self.handed_out = 0

    def fetch(self, metrics, matchers, start_s, end_s):
        return tidy(one for part in self.parts(metrics, matchers, start_s, end_s) for one in part)

    def parts(self, metrics, matchers, start_s, end_s):
        names = {metric.name for metric in metrics}
        wanted = [
            one
            for one in self.series
            if one[0]["__name__"] in names and all(one[0].get(label, "") == text for label, text in matchers.items())
        ]
        for first_s in np.arange(max(start_s, START_S - 7_200), min(end_s, START_S + RUN_S + 7_200), 7_200):
            part = []
            for labels, t, value in wanted:
                inside = (t >= max(first_s, start_s)) & (t < first_s + 7_200) & (t <= end_s)
                part.append((labels, t[inside], value[inside]))
            self.handed_out += sum(len(t) for _, t, _ in part)
            yield [one for one in part if len(one[1])]

    def close(self):
        pass


def spoiled(one):
    """GPU 1 was not read for 40 s and then for 400 s, GPU 2's sensor stood still for 700 s under load, GPU 3's counter
    began again, GPU 4 jumps to 690 W for a second in 50 and has nothing to do for a part of each fourth.
    """
    since_s = one.t_ms / 1_000 - START_S
    gpu, value = one.labels.get("gpu"), np.array(one.value)
    if gpu == "1":
        kept = ~((since_s > 9_000) & (since_s < 9_040)) & ~((since_s > 20_000) & (since_s < 20_400))
        return replace(one, t_ms=one.t_ms[kept], value=value[kept])
    if gpu == "2" and one.metric == m.GPU_POWER:
        value[(since_s > 11_111) & (since_s < 11_811)] = 333.25
    if gpu == "4" and one.metric == m.GPU_POWER:
        value[np.floor(since_s) % 50 == 0] = 690.0
    if gpu == "4" and one.metric == m.GPU_UTILIZATION:
        value[np.floor(since_s) % 4 == 0] = 0.57
    if gpu == "3" and one.metric == m.GPU_ENERGY:
        value[since_s > 15_000] -= value[since_s > 15_000][0]
    return replace(one, value=value)


def carbon():
    """Of the grid's slots, with an outage of the provider in the middle."""
    since = np.arange(-long_run.MARGIN_S, RUN_S + long_run.MARGIN_S) + 0.25
    labels = {"region": "GB", "provider": "gb", "basis": "average", "quality": "actual", "instance": "node-1:9847"}
    known, slot = ~((since > 14_000) & (since < 14_900)), np.floor(since / SLOT_S)
    t_ms = np.rint((START_S + since) * 1_000).astype(np.int64)
    yield Stored(m.SOURCE_UP, {"source": "carbon", "instance": "node-1:9847"}, t_ms, known.astype(float))
    yield Stored(m.CARBON_INTENSITY, labels, t_ms[known], (100 + 20 * slot % 70)[known])
    yield Stored(m.CARBON_INTENSITY_TIMESTAMP, labels, t_ms[known], (START_S + slot * SLOT_S)[known])


@pytest.fixture(scope="module")
def stored():
    return StoredSource([*map(spoiled, long_run.run(START_S, RUN_S)), *carbon()])


@pytest.fixture(scope="module")
def thinned(stored):
    now_s = START_S + RUN_S + 3_600
    return load_run(stored, long_run.RUN_ID, 7 * 86_400.0, Clock(lambda: now_s, lambda _: None), lambda _: None)


@pytest.fixture(scope="module")
def whole(stored, thinned):
    span_s = START_S - MARGIN_S, START_S + RUN_S + MARGIN_S
    names = set(thinned.raw["metric"])
    raw = tidy(
        (labels, t[(t >= span_s[0]) & (t <= span_s[1])], value[(t >= span_s[0]) & (t <= span_s[1])])
        for labels, t, value in stored.series
        if labels["__name__"] in names
    )
    return replace(thinned, raw=raw, exact={})


def test_most_samples_are_not_kept(thinned, whole):
    assert RUN_S > MAX_UNCHANGED
    assert len(whole.raw) > 1_500_000
    assert len(thinned.raw) < 150_000
    assert len(thinned.others) + len(thinned.ledger) < 20_000


def test_the_report_is_the_same_to_the_last_finding(thinned, whole):
    found, expected = assess(thinned), assess(whole)

    assert found.findings == expected.findings
    assert {finding.code for finding in found.findings} >= {"gap", "stuck_sensor", "counter_reset", "carbon_missing"}
    assert found.energy == expected.energy
    for device, other in zip(found.devices, expected.devices, strict=True):
        assert (device.max_power_w, device.power_limit_w) == (other.max_power_w, other.power_limit_w)
        assert device.idle_power_w == other.idle_power_w
        assert device.net == other.net
        assert close(device.own, other.own)
        assert device.integral_j == pytest.approx(other.integral_j) if other.integral_j else device.integral_j is None
    assert close(found.own, expected.own)


def close(bound, other):
    return all(
        math.isclose(getattr(bound, name), getattr(other, name), rel_tol=1e-12) for name in ("value", "low", "high")
    )


def test_percentiles_and_means_of_a_long_run_are_of_all_samples(stored, thinned):
    """GPU 4 draws 454 W for 49 % of the time and more for 2 %: that is no power limit of 690 W that held it."""
    (window,) = windows(thinned.ledger, thinned.run_id).values()

    seen = Seen.of(with_throttling_samples(stored, thinned), window, uuid(4), set())

    assert seen.p95_power_w == pytest.approx(454, abs=1.1)
    assert seen.utilization == pytest.approx(0.97 - 0.4 / 4, abs=1e-3)


def test_the_page_tells_no_median_of_samples_that_were_left(thinned, whole):
    found, expected = (report_charts(assess(frames), frames, frames.raw)[0].ranges for frames in (thinned, whole))

    assert [(one.name, one.minimum, one.maximum) for one in found] == [
        (one.name, one.minimum, one.maximum) for one in expected
    ]
    assert {one.median for one in found} == {None}
    assert all(one.median is not None for one in expected)


def test_the_energy_in_each_slot_of_a_carbon_intensity_is_the_same(thinned, whole):
    found, expected = assess(thinned).carbon_slots, assess(whole).carbon_slots

    assert len(expected) >= RUN_S // SLOT_S
    assert [(one.start_s, one.end_s, one.grams_per_kwh) for one in found] == [
        (one.start_s, one.end_s, one.grams_per_kwh) for one in expected
    ]
    assert [one.gpu_energy_j for one in found] == pytest.approx([one.gpu_energy_j for one in expected], rel=1e-9)


def test_the_energy_is_the_one_that_was_drawn(thinned):
    """Half of the time at 450 W and half at 150 W, and a watt more from GPU to GPU: 300 W × 30,000 s = 9 MJ."""
    devices = assess(thinned).devices

    assert [device.own.value for device in devices] == pytest.approx(
        [(300 + gpu) * RUN_S for gpu in range(8)], rel=1e-4
    )
    assert devices[0].integral_j == pytest.approx(9e6, rel=1e-4)


def test_the_peaks_of_the_power_are_still_there_to_be_drawn(thinned, whole):
    for gpu in range(8):
        kept, every = (samples(frames.raw, m.GPU_POWER, uuid=uuid(gpu)) for frames in (thinned, whole))
        assert np.isin(kept.t, every.t).all()
        assert (kept.value.max(), kept.value.min()) == (every.value.max(), every.value.min())
