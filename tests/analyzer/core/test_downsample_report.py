"""Report of a run that is long enough for downsampling."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.analyzer.series_source import SeriesSource
from tests.bench import long_run
from tests.bench.long_run import StoredSeries, uuid
from wattline.contract import metrics as m
from wattline_analyzer.core.conditions import gpu_conditions
from wattline_analyzer.core.downsample import MAX_UNCHANGED
from wattline_analyzer.core.runs.load import MARGIN_S, Clock, load_run
from wattline_analyzer.core.sample_table import samples, table_of
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.html.charts import report_charts
from wattline_analyzer.report.studies import with_throttling_samples

START_S = 1_789_000_000.0
RUN_S = 30_000
SLOT_S = 1_700
"""Length of a carbon slot; no slot starts at a bucket's edge."""


class StoredSource(SeriesSource):
    """Source that returns series in parts of two hours and counts the samples."""

    name = "stored"

    def __init__(self, series):
        self.series = [
            (
                {"__name__": entry.metric.name, **entry.labels},
                entry.t_ms / 1_000,
                np.asarray(entry.value),
            )
            for entry in series
        ]
        self.handed_out = 0

    def parts(self, metrics, matchers, start_s, end_s):
        names = {metric.name for metric in metrics}
        selected = [
            entry
            for entry in self.series
            if entry[0]["__name__"] in names
            and all(entry[0].get(label, "") == text for label, text in matchers.items())
        ]
        for first_s in np.arange(
            max(start_s, START_S - 7_200), min(end_s, START_S + RUN_S + 7_200), 7_200
        ):
            part = []
            for labels, t, value in selected:
                inside = (t >= max(first_s, start_s)) & (t < first_s + 7_200) & (t <= end_s)
                part.append((labels, t[inside], value[inside]))
            self.handed_out += sum(len(t) for _, t, _ in part)
            yield [entry for entry in part if len(entry[1])]


def with_faults(entry):
    """Series with faults.

    GPU 1 has gaps of 40 s and 400 s. The sensor of GPU 2 is stuck for 700 s under load. The counter
    of GPU 3 restarts. GPU 4 reaches 690 W in one second of 50, and is less utilized in every fourth
    second.
    """
    since_s = entry.t_ms / 1_000 - START_S
    gpu, value = entry.labels.get("gpu"), np.array(entry.value)
    if gpu == "1":
        reduced = ~((since_s > 9_000) & (since_s < 9_040)) & ~(
            (since_s > 20_000) & (since_s < 20_400)
        )
        return replace(entry, t_ms=entry.t_ms[reduced], value=value[reduced])
    if gpu == "2" and entry.metric == m.GPU_POWER:
        value[(since_s > 11_111) & (since_s < 11_811)] = 333.25
    if gpu == "4" and entry.metric == m.GPU_POWER:
        value[np.floor(since_s) % 50 == 0] = 690.0
    if gpu == "4" and entry.metric == m.GPU_UTILIZATION:
        value[np.floor(since_s) % 4 == 0] = 0.57
    if gpu == "3" and entry.metric == m.GPU_ENERGY:
        value[since_s > 15_000] -= value[since_s > 15_000][0]
    return replace(entry, value=value)


def carbon():
    """Carbon intensity by slot, with an outage of the provider in the middle."""
    since = np.arange(-long_run.MARGIN_S, RUN_S + long_run.MARGIN_S) + 0.25
    labels = {
        "region": "GB",
        "provider": "gb",
        "basis": "average",
        "quality": "actual",
        "instance": "node-1:9847",
    }
    available, slot = ~((since > 14_000) & (since < 14_900)), np.floor(since / SLOT_S)
    t_ms = np.rint((START_S + since) * 1_000).astype(np.int64)
    yield StoredSeries(
        m.SOURCE_UP, {"source": "carbon", "instance": "node-1:9847"}, t_ms, available.astype(float)
    )
    yield StoredSeries(
        m.CARBON_INTENSITY, labels, t_ms[available], (100 + 20 * slot % 70)[available]
    )
    yield StoredSeries(
        m.CARBON_INTENSITY_TIMESTAMP, labels, t_ms[available], (START_S + slot * SLOT_S)[available]
    )


@pytest.fixture(scope="module")
def stored():
    return StoredSource([*map(with_faults, long_run.run(START_S, RUN_S)), *carbon()])


@pytest.fixture(scope="module")
def downsampled(stored):
    now_s = START_S + RUN_S + 3_600
    return load_run(
        stored, long_run.RUN_ID, 7 * 86_400.0, Clock(lambda: now_s, lambda _: None), lambda _: None
    )


@pytest.fixture(scope="module")
def complete(stored, downsampled):
    span_s = START_S - MARGIN_S, START_S + RUN_S + MARGIN_S
    names = downsampled.raw.distinct("metric")
    raw = table_of(
        (labels, t[(t >= span_s[0]) & (t <= span_s[1])], value[(t >= span_s[0]) & (t <= span_s[1])])
        for labels, t, value in stored.series
        if labels["__name__"] in names
    )
    return replace(downsampled, raw=raw, exact={})


@pytest.fixture(scope="module")
def reports(downsampled, complete):
    """Reports from the downsampled run and from all samples."""
    return assess(downsampled), assess(complete)


def test_downsampled_run_keeps_few_samples(downsampled, complete):
    assert RUN_S > MAX_UNCHANGED
    assert len(complete.raw) > 1_500_000
    assert len(downsampled.raw) < 150_000
    assert len(downsampled.scrapes.times) < 20_000


def test_downsampled_run_report_equals_report_of_all_samples(reports):
    result, expected = reports

    assert result.findings == expected.findings
    assert {finding.code for finding in result.findings} >= {
        "gap",
        "stuck_sensor",
        "counter_reset",
        "carbon_missing",
    }
    assert result.energy == expected.energy
    for device, reference in zip(result.devices, expected.devices, strict=True):
        assert (device.max_power_w, device.power_limit_w) == (
            reference.max_power_w,
            reference.power_limit_w,
        )
        assert device.idle_power_w == reference.idle_power_w
        assert device.net == reference.net
        assert close(device.from_raw_samples, reference.from_raw_samples)
        assert (
            device.integral_j == pytest.approx(reference.integral_j)
            if reference.integral_j
            else device.integral_j is None
        )
    assert close(result.energies.from_raw_samples, expected.energies.from_raw_samples)


def close(bound, reference):
    return all(
        math.isclose(getattr(bound, name), getattr(reference, name), rel_tol=1e-12)
        for name in ("value", "low", "high")
    )


def test_downsampled_run_percentiles_and_means_are_of_all_samples(stored, downsampled):
    """GPU 4 uses 454 W for 49 % of the time and more for 2 %, so a power limit of 690 W has no
    effect on it.
    """
    (window,) = downsampled.scrapes.windows.values()

    throttling = gpu_conditions(
        with_throttling_samples(stored, downsampled).raw, window, uuid(4), []
    )

    assert throttling.p95_power_w == pytest.approx(454, abs=1.1)
    assert throttling.utilization == pytest.approx(0.97 - 0.4 / 4, abs=1e-3)


def test_downsampled_run_page_has_no_median(reports, downsampled, complete):
    result, expected = (
        report_charts(report, frames, frames.raw)[0].ranges
        for report, frames in zip(reports, (downsampled, complete), strict=True)
    )

    assert [(entry.name, entry.minimum, entry.maximum) for entry in result] == [
        (entry.name, entry.minimum, entry.maximum) for entry in expected
    ]
    assert {entry.median for entry in result} == {None}
    assert all(entry.median is not None for entry in expected)


def test_downsampled_run_energy_by_carbon_slot_is_equal(reports):
    result, expected = (report.carbon_slots for report in reports)

    assert len(expected) >= RUN_S // SLOT_S
    assert [(entry.start_s, entry.end_s, entry.grams_per_kwh) for entry in result] == [
        (entry.start_s, entry.end_s, entry.grams_per_kwh) for entry in expected
    ]
    assert [entry.gpu_energy_j for entry in result] == pytest.approx(
        [entry.gpu_energy_j for entry in expected], rel=1e-9
    )


def test_downsampled_run_energy_is_true_energy(reports):
    """Half of the time at 450 W and half at 150 W, plus 1 W per GPU index: 300 W x 30,000 s = 9
    MJ.
    """
    devices = reports[0].devices

    assert [device.from_raw_samples.value for device in devices] == pytest.approx(
        [(300 + gpu) * RUN_S for gpu in range(8)], rel=1e-4
    )
    assert devices[0].integral_j == pytest.approx(9e6, rel=1e-4)


def test_downsampled_run_keeps_power_peaks(downsampled, complete):
    for gpu in range(8):
        reduced, full = (
            samples(frames.raw, m.GPU_POWER, uuid=uuid(gpu)) for frames in (downsampled, complete)
        )
        assert np.isin(reduced.t, full.t).all()
        assert (reduced.value.max(), reduced.value.min()) == (full.value.max(), full.value.min())
