import pytest

from workloads.jobs import base


def test_percentile_results_interpolate_linearly():
    # Five values have four steps: 90 % of the way is 3.6 steps, between the fourth (4) and the fifth (10).
    assert base.percentile_results("latency_seconds", [10, 1, 3, 2, 4]) == pytest.approx(
        {
            "latency_seconds_mean": 4.0,
            "latency_seconds_p50": 3.0,
            "latency_seconds_p90": 4 + 0.6 * 6,
            "latency_seconds_p95": 4 + 0.8 * 6,
            "latency_seconds_p99": 4 + 0.96 * 6,
        }
    )


def test_percentile_results_without_values_are_empty():
    assert base.percentile_results("latency_seconds", []) == {}
