"""Figures of tenants on one GPU, from their shares and runs alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.figures import Figure, sum_of_correlated
from wattline_analyzer.tenants import figures as tenants
from wattline_analyzer.tenants.figures import ConcurrentStep, SoloRun, TenantShare, jain_index


def concurrent_step(seconds=10.0, mps=False, **work):
    """Return a step; `work` has units and attributed energy in the overlap for each tenant."""
    shares = [
        TenantShare(name, "tokens", Figure(amount), joules and Figure(joules), 1.0, {})
        for name, (amount, joules) in work.items()
    ]
    energies = [share.energy for share in shares]
    return ConcurrentStep(
        "case",
        "1",
        mps,
        seconds,
        tuple(shares),
        None if None in energies else sum_of_correlated(energies),
    )


SOLO_RUNS = {
    "small": SoloRun(100.0, energy_per_unit=Figure(3.0), idle_power_w=60.0),
    "large": SoloRun(50.0, energy_per_unit=Figure(6.0), idle_power_w=60.0),
}


def test_tenant_metrics_match_eyerman_and_eeckhout():
    progress = tenants.normalized_progress(
        concurrent_step(small=(800, None), large=(200, None)), SOLO_RUNS
    )

    assert progress == {"small": 0.8, "large": 0.4}  # 80 of 100 tokens/s, 20 of 50
    assert tenants.system_throughput(progress) == pytest.approx(1.2)
    assert tenants.turnaround(progress) == pytest.approx((1 / 0.8 + 1 / 0.4) / 2)
    assert tenants.worst_slowdown(progress) == 2.5
    assert tenants.fairness(progress) == 0.5


def test_jain_index_of_equal_and_of_one_sided_progress():
    assert jain_index({"a": 0.5, "b": 0.5}) == pytest.approx(1.0)
    assert jain_index({"a": 0.9, "b": 0.3}) == pytest.approx(
        1.2**2 / (2 * 0.9)
    )  # 0.81 + 0.09 = 0.9


def test_tenant_energy_compares_with_sequential_and_dedicated_gpus():
    figures = tenants.step_figures(
        concurrent_step(small=(800, 1_400), large=(200, 1_600)), SOLO_RUNS
    )
    result = {name: one.value for name, one in figures.items()}

    assert result["energy_per_unit_joules"] == 3.0  # 3,000 J for 1,000 tokens
    assert result["energy_over_sequential_ratio"] == 3_000 / (800 * 3 + 200 * 6)
    # alone they need 8 s and 4 s of the 10: 2 s and 6 s at 60 W are 480 J more
    assert result["energy_over_own_gpus_ratio"] == pytest.approx(3_000 / (3_600 + 480))
    assert result["small:slowdown"] == 1.25


def test_tenants_without_solo_runs_have_throughput_only():
    result = tenants.step_figures(concurrent_step(small=(800, None), large=(200, None)), {})

    assert result["total_per_second"] == Figure(100)
    assert (
        not {"stp", "antt", "fairness", "energy_over_sequential_ratio", "energy_per_unit_joules"}
        & result.keys()
    )


def test_tenants_different_units_are_not_added():
    step = concurrent_step(small=(800, 1_400), large=(200, 1_600))
    mixed = ConcurrentStep(
        "",
        "",
        step.mps,
        10.0,
        (step.shares[0], TenantShare("large", "images", Figure(200), Figure(1_600), 1.0, {})),
    )

    result = tenants.step_figures(mixed, SOLO_RUNS)
    assert "total_per_second" not in result
    assert result["stp"].value == pytest.approx(1.2)


def test_solo_run_with_another_unit_is_ignored():
    """800 tokens in the step and 100 batches/s alone give no slowdown; 3 J per batch is no cost of
    a token.
    """
    solo_runs = {
        **SOLO_RUNS,
        "small": SoloRun(100.0, energy_per_unit=Figure(3.0), unit="batches"),
    }

    result = tenants.step_figures(
        concurrent_step(small=(800, 1_400), large=(200, 1_600)), solo_runs
    )

    assert (
        not {"stp", "antt", "worst_slowdown", "fairness", "energy_over_sequential_ratio"}
        & result.keys()
    )
    assert result["total_per_second"] == Figure(100)


def test_tenant_far_slower_than_mean_starves():
    even = tenants.evenness([concurrent_step(small=(800, None), large=(200, None))], SOLO_RUNS)

    assert even.roles == {
        "small": "hogs",
        "large": "starves",
    }  # 1.25 and 2.5 times as slow, 1.875 on the mean
    assert even.band == "very uneven"
    assert even.most_over_least == 2


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=8))
def test_stp_and_antt_stay_in_their_bounds(values):
    progress = {str(i): value for i, value in enumerate(values)}

    assert 0 < tenants.system_throughput(progress) <= len(values)
    assert tenants.turnaround(progress) >= len(values) / tenants.system_throughput(progress) - 1e-9
    assert tenants.turnaround(progress) <= tenants.worst_slowdown(progress) + 1e-9
    assert 0 < tenants.fairness(progress) <= 1
