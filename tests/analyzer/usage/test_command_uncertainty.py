"""Uncertainty of `analyzer usage`, which covers the energy that attribution misses at the edges of
a run.
"""

import json

import pytest

from tests.analyzer.fleet_nodes import HALF_J, NodeSeries
from tests.analyzer.small_fleet import BEGIN_S, END_S, RUN_W, fleet_series, write_samples
from wattline.contract import metrics as m

MISSED_J = 500.0


def test_usage_uncertainty_includes_energy_missed_by_attribution(call, tmp_path):
    """The attribution misses 500 J of 414,000 J on the GPU of node a, on which u2's run is
    alone.
    """
    series = [
        NodeSeries(one.labels, one.t, (one.value - MISSED_J).clip(0))
        if one.labels["__name__"] == m.RUN_ATTRIBUTED_ENERGY.name
        and one.labels.get("run_id") == "two-nodes"
        and one.labels["instance"] == "a:9847"
        and one.labels["component"] == "gpu"
        else one
        for one in fleet_series()
    ]

    u2 = users(call, write_samples(tmp_path, series))["u2"]

    # one device of six misses 500 J; the half-widths of the devices of a job add
    assert u2["energy_uncertainty_joules"] == pytest.approx(6 * HALF_J + MISSED_J)


@pytest.mark.parametrize("source", ["prometheus", "victoria-metrics", "history"])
def test_usage_shares_of_a_shared_gpu_have_no_uncertainty(
    call, fleet_addresses, fleet_history, source
):
    """u3 and u4 share a GPU for half of their runs; the run of u2 is alone on each node."""
    found = users(call, {**fleet_addresses, "history": fleet_history}[source])

    assert found["u3"]["energy_joules"] == pytest.approx(RUN_W * 750)
    assert [found[name]["energy_uncertainty_joules"] for name in ("u3", "u4")] == [None, None]
    assert found["u2"]["energy_uncertainty_joules"] == pytest.approx(HALF_J * 6)


def users(call, source):
    window = (
        "--since",
        BEGIN_S,
        "--until",
        END_S,
        "--by",
        "user",
        "--format",
        "json",
    )
    code, stdout, stderr = call("usage", "--source", source, *window)
    assert code == 0, stderr
    return {row["user"]: row for row in json.loads(stdout)["groups"]}
