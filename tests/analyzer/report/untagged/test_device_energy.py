"""Energy of a device over a range: dead counters, and integrals of few samples."""

import json

import pytest

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

GPUS = [NodeGpu([(START_S - 1_000, 100)], index=str(index)) for index in range(2)]


def range_document(analyzer, folder, scraped, seconds, interval_s=5.0):
    """Return the report of the first `seconds` of a history whose scrapes are `scraped(t)`."""
    times = scrape_times(interval_s, START_S - 60, START_S + 900)
    history = write_history(folder, series_of_scrapes((t, scraped(t)) for t in times))
    span = ("--start", START_S, "--end", START_S + seconds)
    completed = analyzer("report", "--source", history, *span, "--format", "json")
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def with_dead_counter(t, *, power):
    """Return two GPUs of 100 W; the counter of GPU 1 never rises."""
    for metric, labels, value in scrape(GPUS, NodeRun(end_s=0), t):
        dead = labels.get("uuid") == GPUS[1].uuid
        if metric is m.GPU_ENERGY and dead:
            yield metric, labels, 1_234.0
        elif not (metric is m.GPU_POWER and dead and not power):
            yield metric, labels, value


@pytest.mark.parametrize(("power", "energy_j"), [(True, 60_000), (False, 30_000)])
def test_range_dead_counter_is_no_reading(analyzer, tmp_path, power, energy_j):
    """Two GPUs of 100 W for 300 s: the dead counter's GPU counts by its power, or not at all, never
    as 0 J.
    """
    document = range_document(analyzer, tmp_path, lambda t: with_dead_counter(t, power=power), 300)

    assert document["energy"]["gpu"]["energy_joules"] == pytest.approx(energy_j, rel=0.02)
    assert all(device["energy_joules"] > 0 for device in document["devices"])
    (finding,) = [one for one in document["findings"] if one["code"] == "counter_dead"]
    assert ("left out of all sums" in finding["text"]) is not power


def test_range_integral_of_few_samples_is_declared(analyzer, tmp_path):
    """A GPU of 100 W whose scrapes each 15 s hit its 2 s at 300 W: its mean is 126.7 W, that of the
    scrapes 300 W.
    """
    steps = [
        step
        for k in range(-10, 70)
        for step in ((START_S + 15 * k - 1, 300), (START_S + 15 * k + 1, 100))
    ]
    gpu = NodeGpu(steps)

    document = range_document(
        analyzer, tmp_path, lambda t: scrape([gpu], NodeRun(end_s=0), t), 300, 15.0
    )

    codes = {one["code"] for one in document["findings"]}
    assert {"integral_coarse", "counter_implausible"} & codes
    assert document["energy"]["gpu"]["energy_joules"] == pytest.approx(
        300 * (100 + 200 * 2 / 15), rel=0.02
    )


def with_faulty_counter(t, fault):
    for metric, labels, value in scrape(GPUS[:1], NodeRun(end_s=0), t):
        yield metric, labels, fault(t - START_S, value) if metric is m.GPU_ENERGY else value


@pytest.mark.parametrize(
    "fault",
    [
        lambda t, value: 0.0 if t == 100 else value,
        lambda t, value: 0.0 if 100 <= t <= 110 else value,
        lambda t, value: 9e9 if t == 100 else value,
        lambda t, value: value + (2e6 if t >= 100 else 0),
        lambda t, value: value + (2e6 if t >= 100 else 0) + (9e7 if t >= 200 else 0),
    ],
)
def test_range_faulty_values_of_counter_are_left_out(analyzer, tmp_path, fault):
    """A GPU of 100 W for 300 s uses 30 kJ, also if its counter has a wrong value in one scrape or a
    jump.
    """
    document = range_document(analyzer, tmp_path, lambda t: with_faulty_counter(t, fault), 300)
    energy = document["energy"]["gpu"]

    assert energy["energy_joules"] == pytest.approx(30_000, rel=0.01)
    assert abs(energy["energy_joules"] - 30_000) <= energy["energy_uncertainty_joules"]
    assert "counter_leap" in {one["code"] for one in document["findings"]}


def test_range_restart_of_counter_is_no_fault(analyzer, tmp_path):
    """The counter starts again at 0 after 100 s, so that the energy since the scrape before is
    unknown.
    """
    document = range_document(
        analyzer,
        tmp_path,
        lambda t: with_faulty_counter(t, lambda t, value: value if t < 101 else 100 * (t - 101)),
        300,
    )
    energy = document["energy"]["gpu"]

    assert 30_000 - 500 <= energy["energy_joules"] <= 30_000
    assert {one["code"] for one in document["findings"]} & {"counter_leap", "counter_reset"} == {
        "counter_reset"
    }


def test_range_counter_that_rises_too_fast_is_declared(analyzer, tmp_path):
    """A rise by 8 kJ in 5 s is 1,600 W, more than this GPU can draw but less than a leap."""
    document = range_document(
        analyzer,
        tmp_path,
        lambda t: with_faulty_counter(t, lambda t, value: value + (8e3 if t >= 100 else 0)),
        300,
    )
    texts = [one["text"] for one in document["findings"] if one["level"] == "bad"]
    energy = document["energy"]["gpu"]

    assert energy["energy_joules"] == pytest.approx(38_000, rel=0.01)
    assert abs(energy["energy_joules"] - 30_000) <= energy["energy_uncertainty_joules"]
    assert any("its energy is too high; do not use it" in text for text in texts)


@pytest.mark.parametrize(
    "fault",
    [
        lambda t, value: min(t, 150) * 100.0 + 6_000,
        lambda t, value: value / 2,
        lambda t, value: value * 2,
    ],
    ids=["frozen", "half speed", "double speed"],
)
def test_range_implausible_counter_interval_includes_power(analyzer, tmp_path, fault):
    """A GPU of 100 W for 300 s has 30 kJ by its power."""
    document = range_document(analyzer, tmp_path, lambda t: with_faulty_counter(t, fault), 300)
    energy = document["energy"]["gpu"]

    assert "counter_implausible" in {one["code"] for one in document["findings"]}
    assert energy["energy_joules"] in (
        pytest.approx(15_000, rel=0.02),
        pytest.approx(60_000, rel=0.02),
    )
    assert abs(energy["energy_joules"] - 30_000) <= energy["energy_uncertainty_joules"]
