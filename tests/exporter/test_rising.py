from hypothesis import given
from hypothesis import strategies as st

from exporter.contract.metrics import GPU_ECC_ERRORS, GPU_FAN, GPU_XID_ERRORS, SOURCE_READS
from exporter.energy.counters import MAX_SERIES, MonotonicCounters
from exporter.model import Reading

ECC = ("0", "GPU-0", "corrected")


def ecc(counters, raw, *, ours=False):
    (reading,) = counters.take([Reading(GPU_ECC_ERRORS, ECC, raw)], ours=ours)
    return reading.value


def test_what_was_counted_before_us_is_nothing_and_what_comes_then_counts():
    counters = MonotonicCounters()

    assert [ecc(counters, raw) for raw in (41.0, 41.0, 43.0)] == [0, 0, 2]


def test_our_own_counts_from_the_first():
    counters = MonotonicCounters()
    (reading,) = counters.take([Reading(SOURCE_READS, ("nvml", "ok"), 5.0)], ours=True)

    assert reading.value == 5


def test_a_counter_that_began_anew_goes_on_from_where_it_was():
    counters = MonotonicCounters()

    assert [ecc(counters, raw) for raw in (10.0, 15.0, 3.0, 4.0)] == [0, 5, 8, 9]


def test_it_goes_on_under_the_next_exporter():
    first = MonotonicCounters()
    ecc(first, 10.0)
    ecc(first, 16.0)
    second = MonotonicCounters(first.take_changed())

    assert ecc(second, 18.0) == 8
    assert first.take_changed() == {}


def test_a_gauge_passes_as_it_is():
    fan = Reading(GPU_FAN, ("0", "GPU-0"), 0.4)

    assert list(MonotonicCounters().take([fan], ours=False)) == [fan]


def test_what_is_counted_by_us_alone_is_shown():
    counters = MonotonicCounters()
    for _ in range(3):
        counters.add(GPU_XID_ERRORS, ("0", "GPU-0", "79"), 1.0)
    ecc(counters, 5.0)

    assert list(counters.shown(GPU_XID_ERRORS)) == [Reading(GPU_XID_ERRORS, ("0", "GPU-0", "79"), 3.0)]


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50))
def test_it_never_falls(raws):
    counters = MonotonicCounters()
    values = [ecc(counters, raw) for raw in raws]

    assert values == sorted(values)


def test_those_not_read_for_the_longest_time_are_forgotten():
    counters = MonotonicCounters()
    readings = [Reading(GPU_XID_ERRORS, ("0", "GPU-0", str(n)), 1.0) for n in range(MAX_SERIES + 10)]
    list(counters.take(readings, ours=True))

    assert len(counters.known) == MAX_SERIES
    assert (GPU_XID_ERRORS.name, ("0", "GPU-0", "9"), ()) not in counters.known


def test_what_is_counted_by_us_alone_is_never_forgotten():
    counters = MonotonicCounters()
    xid = ("0", "GPU-0", "79")
    counters.add(GPU_XID_ERRORS, xid, 1.0)
    counters.add(GPU_XID_ERRORS, xid, 1.0)
    restarted = MonotonicCounters(counters.take_changed())
    for n in range(MAX_SERIES + 10):
        list(restarted.take([Reading(SOURCE_READS, (f"source {n}", "ok"), 1.0)], ours=True))
    restarted.add(GPU_XID_ERRORS, xid, 1.0)

    assert list(restarted.shown(GPU_XID_ERRORS)) == [Reading(GPU_XID_ERRORS, xid, 3.0)]
    assert len(restarted.known) == MAX_SERIES


def test_where_all_is_counted_by_us_alone_nothing_is_forgotten():
    counters = MonotonicCounters()
    for n in range(MAX_SERIES + 10):
        counters.add(GPU_XID_ERRORS, ("0", "GPU-0", str(n)), 1.0)
    list(counters.take([], ours=True))

    assert len(counters.known) == MAX_SERIES + 10
