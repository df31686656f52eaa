"""Tenants of one GPU: definitions by hand, and the overlap from series of runs that began and ended apart."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.energy.phases import at, span, stretches
from analyzer.model.samples import Samples
from analyzer.studies import tenants
from analyzer.studies.tenants import ConcurrentStep, SoloRun, TenantShare
from exporter.contract import metrics as m
from tests.analyzer.node import START_S, NodeGpu, scrape_times, series_of_scrapes, write_history


def together(seconds=10.0, mps=False, **work):
    """Each tenant by what it did in the overlap, and the joules that were attributed to it."""
    shares = [TenantShare(name, "tokens", amount, joules, 1.0, {}) for name, (amount, joules) in work.items()]
    return ConcurrentStep("case", "1", mps, seconds, tuple(shares))


ALONE = {
    "small": SoloRun(100.0, energy_per_unit_j=3.0, idle_power_w=60.0),
    "large": SoloRun(50.0, energy_per_unit_j=6.0, idle_power_w=60.0),
}


def test_tenant_metrics_match_eyerman_and_eeckhout():
    made = tenants.normalized_progress(together(small=(800, None), large=(200, None)), ALONE)

    assert made == {"small": 0.8, "large": 0.4}  # 80 of 100 tokens/s, 20 of 50
    assert tenants.system_throughput(made) == pytest.approx(1.2)
    assert tenants.turnaround(made) == pytest.approx((1 / 0.8 + 1 / 0.4) / 2)
    assert tenants.worst_slowdown(made) == 2.5
    assert tenants.fairness(made) == 0.5


def test_tenant_energy_compares_with_sequential_and_dedicated_gpus():
    found = tenants.step_figures(together(small=(800, 1_400), large=(200, 1_600)), ALONE)

    assert found["energy_per_unit_joules"] == 3.0  # 3,000 J for 1,000 tokens
    assert found["energy_over_sequential_ratio"] == 3_000 / (800 * 3 + 200 * 6)
    # alone they need 8 s and 4 s of the 10: 2 s and 6 s at 60 W are 480 J more
    assert found["energy_over_own_gpus_ratio"] == pytest.approx(3_000 / (3_600 + 480))
    assert found["small:slowdown"] == 1.25


def test_tenants_without_solo_runs_have_throughput_only():
    found = tenants.step_figures(together(small=(800, None), large=(200, None)), {})

    assert found["total_per_second"] == 100
    assert not {"stp", "antt", "fairness", "energy_over_sequential_ratio", "energy_per_unit_joules"} & found.keys()


def test_tenants_different_units_are_not_added():
    step = together(small=(800, 1_400), large=(200, 1_600))
    mixed = ConcurrentStep(
        "", "", step.mps, 10.0, (step.shares[0], TenantShare("large", "images", 200, 1_600, 1.0, {}))
    )

    found = tenants.step_figures(mixed, ALONE)
    assert "total_per_second" not in found
    assert found["stp"] == pytest.approx(1.2)


def test_solo_run_with_another_unit_is_ignored():
    """800 tokens beside others and 100 batches/s alone are no slowdown, nor is 3 J a batch a price of a token."""
    alone = {**ALONE, "small": SoloRun(100.0, energy_per_unit_j=3.0, unit="batches")}

    found = tenants.step_figures(together(small=(800, 1_400), large=(200, 1_600)), alone)

    assert not {"stp", "antt", "worst_slowdown", "fairness", "energy_over_sequential_ratio"} & found.keys()
    assert found["total_per_second"] == 100


def test_tenant_far_slower_than_mean_starves():
    even = tenants.evenness([together(small=(800, None), large=(200, None))], ALONE)

    assert even.roles == {"small": "hogs", "large": "starves"}  # 1.25 and 2.5 times as slow, 1.875 on the mean
    assert even.band == "very uneven"
    assert even.most_over_least == 2


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=8))
def test_stp_and_antt_stay_in_their_bounds(values):
    made = {str(i): value for i, value in enumerate(values)}

    assert 0 < tenants.system_throughput(made) <= len(values)
    assert tenants.turnaround(made) >= len(values) / tenants.system_throughput(made) - 1e-9
    assert tenants.turnaround(made) <= tenants.worst_slowdown(made) + 1e-9
    assert 0 < tenants.fairness(made) <= 1


@given(
    st.floats(0, 50),
    st.floats(1, 50),
    st.sampled_from([1.0, 2.5, 15.0]),
)
def test_phase_span_any_scrape_interval_is_exact(begin_s, length_s, interval_s):
    t = np.arange(0, 150, interval_s)
    seconds = Samples(t, np.clip(t - begin_s, 0, length_s))

    found = span(seconds)
    if length_s > interval_s:  # else its begin and end lie between the same two scrapes
        assert found == pytest.approx((begin_s, begin_s + length_s), abs=1e-6)


def test_phase_span_late_update_starts_in_time():
    """On from 2.0 on; told at 7.5 for the first time, and then each second: half a second old in each sample."""
    t = np.arange(11.0)
    (found,) = stretches(Samples(t, np.where(t < 8, 0.0, t - 2.5)))
    assert found == (2.5, 10.0)


def test_phase_repeated_has_two_stretches():
    t = np.arange(0, 11.0)
    assert stretches(Samples(t, np.array([0, 0, 0.5, 1.5, 2, 2, 2, 2.25, 3.25, 3.25, 3.25]))) == [(1.5, 3.5), (6.75, 8)]


def test_counter_between_samples_is_linear():
    counter = Samples(np.array([10.0, 20.0]), np.array([0.0, 100.0]))

    assert at(counter, (12.0, 15.0)) == pytest.approx(30)
    assert at(counter, (15.0, 30.0), ((24.0, 120.0),)) == pytest.approx(70)


GPU = NodeGpu([(START_S - 500, 60), (START_S, 300)])


def tenant_series(run_id, labels, begin_s, end_s, rate, watts, t, p99=0.1):  # noqa: PLR0917  # as they stand in the list of runs
    """A run whose phase measure is all of it but the first 2 s; `watts` are attributed to it."""
    if not begin_s <= t <= end_s + 300:
        return
    own, until_s = {"run_id": run_id}, min(t, end_s)
    in_measure_s = max(until_s - begin_s - 2, 0.0)
    device = {"component": "gpu", "device": GPU.uuid}
    yield m.RUN_INFO, {**own, "workload": "llm-forward", **{f"label_{k}": v for k, v in labels.items()}}, 1.0
    yield m.RUN_START, own, begin_s
    yield m.RUN_DURATION, own, until_s - begin_s
    if t >= end_s:
        yield m.RUN_END, own, end_s
        yield m.RUN_OUTCOME, {**own, "outcome": "ok"}, 1.0
        yield m.RUN_RESULT, {**own, "name": "latency_seconds_p99"}, p99
    yield m.RUN_GPU_INFO, {**own, "gpu": "0", "uuid": GPU.uuid}, 1.0
    yield m.RUN_ENERGY, {**own, **device}, GPU.energy_j(until_s) - GPU.energy_j(begin_s)
    yield m.RUN_ATTRIBUTED_ENERGY, {**own, **device, "policy": "idle_shared"}, watts * (until_s - begin_s)
    yield m.RUN_WORK, {**own, "unit": "tokens"}, rate * in_measure_s
    yield m.RUN_PHASE_SECONDS, {**own, "phase": "load"}, min(until_s - begin_s, 2.0)
    if in_measure_s:
        yield m.RUN_PHASE_SECONDS, {**own, "phase": "measure"}, in_measure_s
        yield m.RUN_PHASE_ENERGY, {**own, "phase": "measure", "component": "gpu"}, 300 * in_measure_s
        yield m.RUN_PHASE_WORK, {**own, "phase": "measure", "unit": "tokens"}, rate * in_measure_s


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """SoloRun 100 and 50 tokens/s at 300 W; together 80 and 20, with MPS 90 and 30, at 180 and 120 W. `large` begins
    5 s after `small` and ends 3 s before it, so the overlap is what `large` measured: 30 s of 38.
    """
    runs = []
    for i, (name, rate) in enumerate((("small", 100), ("large", 50))):
        begin_s = START_S + 100 * i
        runs.append((f"alone-{name}", {"experiment": "pair", "case": name}, begin_s, begin_s + 42, rate, 300, 0.05))
    for i in range(4):
        mps, begin_s = i % 2 == 1, START_S + 200 + 100 * i
        labels = {"experiment": "pair", "case": f"both-{mps}", "mps": str(mps).lower(), "repeat": str(i // 2)}
        rates = (90, 30) if mps else (80, 20)
        runs.append((f"s{i}", {**labels, "tenant": "small"}, begin_s, begin_s + 40, rates[0] + i // 2, 180, 0.1))
        runs.append((f"l{i}", {**labels, "tenant": "large"}, begin_s + 5, begin_s + 37, rates[1], 120, 0.2))
    scrapes = []
    for t in scrape_times(1, START_S - 30, START_S + 700):
        values = [
            (m.BUILD_INFO, {"version": "1"}, 1.0),
            (m.GPU_ENERGY, {"gpu": "0", "uuid": GPU.uuid}, GPU.energy_j(t)),
        ]
        values.append((m.GPU_POWER, {"gpu": "0", "uuid": GPU.uuid}, GPU.power_w(t)))
        for run_id, labels, begin_s, end_s, rate, watts, p99 in runs:
            values += tenant_series(run_id, labels, begin_s, end_s, rate, watts, t, p99)
        scrapes.append((t, values))
    return write_history(tmp_path_factory.mktemp("tenants"), series_of_scrapes(scrapes))


def test_tenants_command_uses_the_overlap(analyzer, history):
    asked = ("tenants", "--experiment", "pair", "--source", history, "--since", "36500d")
    done, table = analyzer(*asked, "--format", "json"), analyzer(*asked)

    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    without, under = read["mixes"]
    assert (without["mps"], under["mps"], without["repeats"]) == (False, True, 2)
    assert without["overlap_seconds"] == pytest.approx(30, abs=0.01)
    assert without["least_overlap_ratio"] == pytest.approx(30 / 38, abs=0.01)
    figures = without["figures"]
    assert figures["small:tokens_per_second"]["value"] == pytest.approx((80 * 81) ** 0.5, rel=1e-3)
    assert figures["large:tokens_per_second"]["value"] == pytest.approx(20, rel=1e-3)
    assert figures["stp"]["value"] == pytest.approx(1.205, rel=1e-3)  # 0.8 and 0.81, and 0.4
    assert figures["energy_joules"]["value"] == pytest.approx(9_000, rel=1e-3)  # (180 + 120) W x 30 s
    # alone: 300 W for 100 tokens/s and for 50 are 3 J and 6 J a token: 30 x (80.5 x 3 + 20 x 6) J
    assert figures["energy_over_sequential_ratio"]["value"] == pytest.approx(9_000 / (30 * 361.5), rel=2e-3)
    assert figures["large:latency_seconds_p99_over_solo_ratio"]["value"] == pytest.approx(4)
    held = {one["figure"]: one for one in read["mps_against_none"]}
    assert held["total_per_second"]["ratio"] == pytest.approx(120.5 / 100.5, rel=1e-3)
    assert held["total_per_second"]["clear"]
    assert held["total_per_second"]["cliffs_delta"] == 1
    assert "large starves" in table.stdout


def test_tenants_command_solo_run_can_be_named(analyzer, history):
    asked = ("tenants", "--experiment", "pair", "--source", history, "--since", "36500d", "--format", "json")
    read = json.loads(analyzer(*asked, "--solo", "large=case=small", "--solo", "small=alone-small").stdout)

    assert read["mixes"][0]["figures"]["large:slowdown"]["value"] == pytest.approx(5, rel=1e-3)  # 20 of 100 tokens/s
    assert read["mixes"][0]["figures"]["small:slowdown"]["value"] == pytest.approx(100 / 80.5, rel=1e-3)


def test_tenants_command_without_tenants_is_one_line(analyzer, history):
    done = analyzer("tenants", "--experiment", "none", "--source", history, "--since", "36500d")

    assert done.returncode == 1
    assert "no run with experiment=none" in done.stderr
