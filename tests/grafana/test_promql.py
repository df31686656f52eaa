"""Checker of queries: it detects each kind of violation."""

import pytest

from tests.grafana.promql import GRAFANA, meaning


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("wattline_gpu_watts", "neither in the contract nor recorded"),
        ('wattline_gpu_power_watts{device="0"}', "no label device"),
        ("sum(wattline_cpu_power_watts)", "sum over zone"),
        ("avg by (instance) (rate(wattline_cpu_energy_joules_total[5m]))", "avg over zone"),
        ("sum by (component) (wattline_run_energy_joules_total)", "sum over run_id"),
        ("sum by (run_id) (wattline_run_work_total)", "sum over unit"),
        (
            'sum by (run_id) (wattline_run_attributed_energy_joules_total{component="gpu"})',
            "sum over policy",
        ),
        ("sum by (model) (wattline_gpu_power_watts)", "by model"),
        ("wattline_gpu_power_watts * on (uuid, run_id) wattline_gpu_up", "on run_id"),
        (
            "wattline_gpu_power_watts * on (uuid) group_left (label_model) wattline_gpu_info",
            "group with label_model",
        ),
        ("wattline_gpu_power_watts + wattline_gpu_energy_joules_total", r"\+"),
        ("sum without (gpu) (wattline_gpu_power_watts)", "labels that are kept"),
    ],
)
def test_meaning_of_a_query_that_breaks_the_contract_raises(query, message):
    with pytest.raises(AssertionError, match=message):
        meaning(query)


@pytest.mark.parametrize(
    ("query", "unit"),
    [
        ("rate(wattline_gpu_energy_joules_total[5m])", "watt"),
        ("increase(wattline_gpu_energy_joules_total[5m]) / 3600000", "kwatth"),
        ("wattline_gpu_power_watts / wattline_gpu_power_limit_watts", "percentunit"),
        ("3600 * rate(wattline_emissions_grams_total[5m])", "suffix:g/h"),
        ("sum_over_time(owner:wattline_run_attributed_energy_joules:increase5m[1h])", "joule"),
        ("owner:wattline_run_attributed_energy_joules:increase5m / 300", "watt"),
        ("time() - wattline_source_read_timestamp_seconds", "s"),
        (
            (
                "sum by (run_id) (wattline_run_energy_joules_total) / sum by (run_id, unit) "
                "(wattline_run_work_total)"
            ),
            "joule",
        ),
        ("rate(wattline_run_work_total[5m])", "suffix:/s"),
    ],
)
def test_meaning_of_a_query_has_its_unit(query, unit):
    dimension, scale = meaning(query).unit()

    assert dimension == GRAFANA[unit][0]
    assert scale == pytest.approx(GRAFANA[unit][1])
    assert GRAFANA["massg"] != (dimension, scale)
