"""Series of the recording rules of deploy/prometheus, and their sums over the time range."""

from __future__ import annotations

from grafana.board import selector

DEVICE_ENERGY = "instance:wattline_device_energy_joules:increase5m"
UNATTRIBUTED_ENERGY = "instance:wattline_unclaimed_energy_joules:increase5m"
EMISSIONS = "instance:wattline_emissions_grams:increase5m"
OWNER_ENERGY = "owner:wattline_run_attributed_energy_joules:increase5m"
OWNER_EMISSIONS = "owner:wattline_run_emissions_grams:increase5m"
OWNER_WORK = "owner:wattline_run_work:increase5m"
GPU = 'component="gpu"'
CPU = 'component="cpu"'
INTERVAL = "5m"
"""Interval of the rules' samples; a sum over a whole number of intervals counts each once."""


def sum_over_range(series: str, *matchers: str) -> str:
    """Return the query of the amounts in the dashboard's time range, by series."""
    return f"sum_over_time({selector(series, *matchers)}[$__range])"
