"""Names, read intervals, wraps and downsampling of an exporter's series."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyzer.node import START_S, NodeGpu, scrape_times
from tests.analyzer.report.untagged import foreign_exporters as foreign
from tests.analyzer.series_source import SeriesSource
from wattline_analyzer.core.fetch import fetch_range_series
from wattline_analyzer.core.samples import Samples
from wattline_analyzer.report.untagged import counter_wraps as wraps
from wattline_analyzer.report.untagged import meters
from wattline_analyzer.report.untagged.device_energy import energy_of_meter
from wattline_analyzer.report.untagged.exporters import find_exporters
from wattline_analyzer.report.untagged.meters import (
    build_meters,
    exporter_label,
    instance_host,
    node_name,
    uuid_of,
)
from wattline_analyzer.report.untagged.request import RangeRequest
from wattline_analyzer.report.untagged.schemas import BY_NAME

UUID = "GPU-3f2a9c1e-0b7d-4e55-9d1a-5a6b7c8d9e00"


class Stored(SeriesSource):
    """Source with an exporter's samples at given times."""

    name = "stored"

    def __init__(self, exporter, times, instance="gpu01:9400"):
        self._series = {}
        for t in times:
            for name, labels, value in exporter(t):
                key = name, frozenset(labels.items())
                if key not in self._series:
                    self._series[key] = {"__name__": name, "instance": instance, **labels}, [], []
                _, own_times, values = self._series[key]
                own_times.append(t)
                values.append(value)

    def parts(self, metrics, matchers, start_s, end_s):
        names = {metric.name for metric in metrics}
        yield [
            (labels, np.array(times), np.array(values, dtype=float))
            for labels, times, values in self._series.values()
            if labels["__name__"] in names and times[0] <= end_s and times[-1] >= start_s
        ]


def meters_of(name, exporter, times, window):
    schema = BY_NAME[name]
    span = (times[0], times[-1])
    return build_meters(
        schema,
        fetch_range_series(Stored(exporter, times), schema.metrics, {}, span, window),
        window,
    )


@pytest.mark.parametrize(
    "text",
    [
        UUID,
        UUID.upper().replace("GPU", "gpu"),
        UUID.removeprefix("GPU-"),
        UUID.removeprefix("GPU-").upper(),
    ],
)
def test_uuid_spellings_are_equal(text):
    assert uuid_of(text) == UUID


def test_exported_label_is_the_exporters_own():
    assert exporter_label({"exported_pod": "train", "pod": "dcgm-exporter-x"}, ("pod",)) == "train"
    assert exporter_label({"Hostname": "gpu01"}, ("Hostname", "hostname")) == "gpu01"
    assert exporter_label({}, ("pod",)) == ""


@pytest.mark.parametrize(
    ("instance", "host"),
    [
        ("gpu01:9400", "gpu01"),
        ("[fe80::1]:9400", "fe80::1"),
        ("10.0.0.1:9400", "10.0.0.1"),
        ("gpu01", "gpu01"),
    ],
)
def test_node_name_is_label_or_scraped_host(instance, host):
    assert instance_host(instance) == host
    assert node_name(BY_NAME["node-exporter"], {"nodename": "GPU07"}, instance) == "gpu07"


@pytest.mark.parametrize("up_h", [0.0, 2.2, 11.0, 16.3])
def test_find_exporters_finds_node_active_in_part_of_range(up_h):
    """The node is active for an hour of a day, which no sample at the range's edges or middle
    shows.
    """
    up_s = START_S + 3_600 * up_h
    source = Stored(foreign.dcgm, scrape_times(15, up_s, up_s + 3_600))

    (exporter,) = find_exporters(source, RangeRequest(START_S, START_S + 86_400))

    assert (exporter.schema, exporter.node) == ("dcgm-exporter", "gpu01")


def test_repeated_readings_are_left_out_with_known_age():
    """Read every 30 s and scraped every 10 s: the first of three samples is kept, up to 30 + 10 s
    old.
    """
    times = scrape_times(10, START_S, START_S + 600)
    (meter,) = meters_of(
        "dcgm-exporter", lambda t: foreign.dcgm(t, refresh_s=30.0), times, (START_S, START_S + 600)
    )

    assert meter.cached_s == 30
    assert meter.age_s == pytest.approx(30 + 10 + 0.5)
    assert np.diff(meter.counter.t).tolist() == [30.0] * (len(meter.counter) - 1)
    assert (np.diff(meter.counter.value) > 0).all()


def test_constant_power_is_kept_once_per_reading():
    power = Samples(np.arange(0.0, 100, 10), np.array([8.0] * 10))

    assert meters.first_of_each_reading(power, 30.0).t.tolist() == [0, 30, 60, 90]


def test_exporter_reading_at_each_scrape_repeats_nothing():
    times = scrape_times(10, START_S, START_S + 600)
    (meter,) = meters_of(
        "nvidia-gpu-exporter", foreign.nvidia_gpu_exporter, times, (START_S, START_S + 600)
    )

    assert meter.cached_s is None
    assert meter.age_s == 0.5
    assert (meter.index, meter.device, meter.info["driver_version"]) == ("0", UUID, "560.35")


def test_counter_fall_without_wrap_is_a_restart():
    """100 W: 1,000 J in 10 s. 60,000 to 500 is a wrap of 65,536 J (6,036 J in 60 s); 3,000 to 10 is
    none.
    """
    counter = Samples(
        np.array([0.0, 10, 20, 80, 90, 100, 110]),
        np.array([58e3, 59e3, 60e3, 500, 1_500, 10, 1_010]),
    )

    unwrapped = wraps.unwrap_counter(counter, 65_536.0)

    assert unwrapped.wraps_s.tolist() == [80]
    assert unwrapped.series.value.tolist() == [58e3, 59e3, 60e3, 66_036, 67_036, 65_546, 66_546]


def test_counter_late_sample_between_wraps_is_left_out():
    """100 W: 59,500 J at 20 s is older than 60,000 J at 10 s, and 65,036 J in 10 s are no wrap."""
    counter = Samples(np.array([0.0, 10, 20, 30]), np.array([59e3, 60e3, 59_500, 62e3]))

    unwrapped = wraps.unwrap_counter(counter, 65_536.0)

    assert unwrapped.wraps_s.tolist() == []
    assert unwrapped.series.t.tolist() == [0, 10, 30]
    assert unwrapped.series.value.tolist() == [59e3, 60e3, 62e3]


@settings(deadline=None, max_examples=60)
@given(
    pieces=st.lists(st.tuples(st.floats(2, 90), st.floats(60, 690)), min_size=3, max_size=20),
    refresh_s=st.sampled_from([0.0, 7.0, 30.0, 45.0]),
    interval_s=st.sampled_from([5.0, 10.0, 15.0, 30.0, 60.0]),
    begin_s=st.floats(0, 200),
    duration_s=st.floats(60, 600),
)
def test_interval_contains_true_energy_for_any_timing(
    pieces, refresh_s, interval_s, begin_s, duration_s
):
    """Power changes in steps; reads, cache and scrapes have different clocks."""
    begins = np.cumsum([0.0, *(length for length, _ in pieces)])
    steps = [(START_S + float(t), watts) for t, (_, watts) in zip(begins, pieces, strict=False)]
    node_gpu = NodeGpu(
        [(START_S - 10_000, 80.0), *steps, (START_S + float(begins[-1]), 80.0)], limit_w=700.0
    )
    times = scrape_times(interval_s, START_S - 300.7, START_S + 1_100)
    window = (START_S + begin_s, START_S + begin_s + duration_s)
    (meter,) = meters_of(
        "dcgm-exporter", lambda t: foreign.dcgm(t, node_gpu, refresh_s=refresh_s), times, window
    )

    result = energy_of_meter(meter, *window).energy

    true_j = node_gpu.energy_j(window[1]) - node_gpu.energy_j(window[0])
    assert abs(result.energy_j - true_j) <= result.half_j + 0.01


DAYS_S = 4 * 86_400.0
LONG = scrape_times(15, START_S - 300, START_S + DAYS_S + 300)
WAVE = NodeGpu(
    [
        (START_S - 10_000, 100.0),
        *((START_S + 7_200.0 * k, 300.0 if k % 2 else 100.0) for k in range(49)),
    ]
)
WINDOW = (START_S + 5_000, START_S + DAYS_S - 5_000)
TRUTH_J = WAVE.energy_j(WINDOW[1]) - WAVE.energy_j(WINDOW[0])


def test_long_range_downsampled_counter_keeps_energy():
    """Four days at 15 s are 23,081 samples, downsampled above 20,000; the true energy is in closed
    form.
    """
    (meter,) = meters_of("dcgm-exporter", lambda t: foreign.dcgm(t, WAVE), LONG, WINDOW)

    result = energy_of_meter(meter, *WINDOW)

    assert len(LONG) > 20_000
    assert len(meter.counter) < 12_000
    assert abs(result.energy.energy_j - TRUTH_J) <= result.energy.half_j < 0.01 * TRUTH_J
    assert result.whole


def test_long_range_downsampled_power_keeps_integral():
    (meter,) = meters_of(
        "nvidia-gpu-exporter",
        lambda t: foreign.nvidia_gpu_exporter(t, WAVE, nvml=False),
        LONG,
        WINDOW,
    )

    result = energy_of_meter(meter, *WINDOW)

    assert meter.power.exact is not None
    assert result.energy.energy_j == pytest.approx(TRUTH_J, rel=0.005)
    assert result.energy.half_j is None
    assert result.energy.covered_ratio == pytest.approx(1.0)


def test_long_range_read_interval_is_estimated_at_edges():
    (meter,) = meters_of(
        "dcgm-exporter", lambda t: foreign.dcgm(t, WAVE, refresh_s=30.0), LONG, WINDOW
    )

    result = energy_of_meter(meter, *WINDOW)

    assert meter.cached_s == 30
    assert abs(result.energy.energy_j - TRUTH_J) <= result.energy.half_j < 0.01 * TRUTH_J


def test_long_range_keeps_all_wraps():
    """100 to 300 W for four days wrap a counter of 65,536 J."""
    result = meters_of(
        "node-exporter", lambda t: foreign.node_exporter(t, WAVE, range_j=65_536.0), LONG, WINDOW
    )
    package = next(meter for meter in result if (meter.component, meter.device) == ("cpu", "0"))

    unwrapped, findings = wraps.unwrap_meter(package, {"package": 65_536.0}, *WINDOW)

    energy = energy_of_meter(unwrapped, *WINDOW).energy
    assert abs(energy.energy_j - 0.5 * TRUTH_J) <= energy.half_j < 0.005 * TRUTH_J
    assert [finding.code for finding in findings] == ["rapl_wrap"]
