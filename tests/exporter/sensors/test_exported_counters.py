"""Exported counters from raw counters that may restart."""

from hypothesis import given
from hypothesis import strategies as st

from wattline.contract.metrics import GPU_ECC_ERRORS, GPU_FAN, GPU_XID_ERRORS, SOURCE_READS
from wattline_exporter.sensors.exported_counters import MAX_SERIES, ExportedCounters
from wattline_exporter.sensors.readings import Reading

ECC = ("0", "GPU-0", "corrected")


def ecc(counters, raw):
    (reading,) = counters.accumulate([Reading(GPU_ECC_ERRORS, ECC, raw)], from_zero=False)
    return reading.value


def test_counters_first_raw_value_is_a_baseline():
    counters = ExportedCounters()

    assert [ecc(counters, raw) for raw in (41.0, 41.0, 43.0)] == [0, 0, 2]


def test_counters_from_zero_include_the_first_raw_value():
    counters = ExportedCounters()
    (reading,) = counters.accumulate([Reading(SOURCE_READS, ("nvml", "ok"), 5.0)], from_zero=True)

    assert reading.value == 5


def test_counters_raw_value_that_restarts_adds_to_the_total():
    counters = ExportedCounters()

    assert [ecc(counters, raw) for raw in (10.0, 15.0, 3.0, 4.0)] == [0, 5, 8, 9]


def test_counters_continue_after_an_exporter_restart():
    first = ExportedCounters()
    ecc(first, 10.0)
    ecc(first, 16.0)
    second = ExportedCounters(first.take_changed())

    assert ecc(second, 18.0) == 8
    assert first.take_changed() == {}


def test_counters_gauge_is_unchanged():
    fan = Reading(GPU_FAN, ("0", "GPU-0"), 0.4)

    assert list(ExportedCounters().accumulate([fan], from_zero=False)) == [fan]


def test_counters_added_events_are_reported():
    counters = ExportedCounters()
    for _ in range(3):
        counters.add(GPU_XID_ERRORS, ("0", "GPU-0", "79"), 1.0)
    ecc(counters, 5.0)

    assert list(counters.readings(GPU_XID_ERRORS)) == [
        Reading(GPU_XID_ERRORS, ("0", "GPU-0", "79"), 3.0)
    ]


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50))
def test_counters_any_raw_values_never_fall(raws):
    counters = ExportedCounters()
    values = [ecc(counters, raw) for raw in raws]

    assert values == sorted(values)


def test_counters_too_many_series_discards_the_least_recent():
    counters = ExportedCounters()
    readings = [
        Reading(GPU_XID_ERRORS, ("0", "GPU-0", str(n)), 1.0) for n in range(MAX_SERIES + 10)
    ]
    list(counters.accumulate(readings, from_zero=True))

    assert len(counters.totals) == MAX_SERIES
    assert (GPU_XID_ERRORS.name, ("0", "GPU-0", "9"), ()) not in counters.totals


def test_counters_added_events_are_never_discarded():
    counters = ExportedCounters()
    xid = ("0", "GPU-0", "79")
    counters.add(GPU_XID_ERRORS, xid, 1.0)
    counters.add(GPU_XID_ERRORS, xid, 1.0)
    restarted = ExportedCounters(counters.take_changed())
    for n in range(MAX_SERIES + 10):
        list(
            restarted.accumulate(
                [Reading(SOURCE_READS, (f"source {n}", "ok"), 1.0)], from_zero=True
            )
        )
    restarted.add(GPU_XID_ERRORS, xid, 1.0)

    assert list(restarted.readings(GPU_XID_ERRORS)) == [Reading(GPU_XID_ERRORS, xid, 3.0)]
    assert len(restarted.totals) == MAX_SERIES


def test_counters_only_added_events_discards_nothing():
    counters = ExportedCounters()
    for n in range(MAX_SERIES + 10):
        counters.add(GPU_XID_ERRORS, ("0", "GPU-0", str(n)), 1.0)
    list(counters.accumulate([], from_zero=True))

    assert len(counters.totals) == MAX_SERIES + 10
