"""Energy and emissions of `analyzer usage --policy idle_apart`, where a run has 80 % of its
devices' energy.
"""

import json

import numpy as np
import pytest

from tests.analyzer.fleet_nodes import FleetNode, FleetRun, NodeSeries, node_series
from tests.analyzer.fleet_owners import owner_series
from tests.analyzer.small_fleet import BEGIN_S, END_S, write_samples

KWH_J = 3.6e6
GRAMS_PER_KWH, SHARE = 200.0, 0.8
GPU_J = 300 * 7_200
NODE = FleetNode(
    "n:9847", BEGIN_S - 86_400, BEGIN_S - 4_200, END_S + 600, gpus=1, grams_per_kwh=GRAMS_PER_KWH
)
RUN = FleetRun("train", ("n:9847",), (0,), BEGIN_S - 3_600, END_S + 500, {"user": "ada"})
OPTIONS = ("--since", BEGIN_S, "--until", END_S, "--policy", "idle_apart")


def with_idle_apart(series):
    """Move a part of the run's energy by the policy `idle_apart` to the unattributed energy."""
    series = list(series)
    for one in series:
        labels = one.labels
        if labels.get("policy") != "idle_apart":
            yield one
        elif labels.get("run_id") or labels.get("owner"):
            yield NodeSeries(labels, one.t, SHARE * one.value)
        else:
            (own,) = (each for each in series if is_of_run(each.labels, labels))
            moved = (1 - SHARE) * np.interp(one.t, own.t, own.value)
            yield NodeSeries(labels, one.t, one.value + moved)


def is_of_run(labels, unattributed):
    """Return True for the series of the run that has the device of an unattributed one."""
    same = all(
        labels.get(name) == unattributed.get(name)
        for name in ("__name__", "policy", "component", "device")
    )
    return same and bool(labels.get("run_id") or labels.get("owner"))


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    of_runs, of_owners = (with_idle_apart(of(NODE, [RUN])) for of in (node_series, owner_series))
    return str(write_samples(tmp_path_factory.mktemp("policy"), [*of_runs, *of_owners]))


@pytest.fixture
def usage(call, history):
    def run(*arguments):
        code, stdout, stderr = call(
            "usage", "--source", history, *OPTIONS, *arguments, "--format", "json"
        )
        assert code == 0, stderr
        return json.loads(stdout)

    return run


def test_usage_idle_apart_has_emissions_of_its_own_energy(usage):
    document = usage("--by", "user")

    (ada,) = document["groups"]
    assert ada["gpu_energy_joules"] == pytest.approx(SHARE * GPU_J, rel=5e-3)
    # this run has emissions of its GPU only
    assert ada["emissions_grams"] == {
        "average": pytest.approx(ada["gpu_energy_joules"] / KWH_J * GRAMS_PER_KWH)
    }
    total = document["total"]
    assert total["emissions_grams"]["average"] == pytest.approx(
        total["energy_joules"] / KWH_J * GRAMS_PER_KWH
    )


def test_usage_idle_apart_by_owner_has_no_emissions_of_another_policy(usage):
    document, given = usage("--by", "owner"), usage("--by", "owner", "--carbon", "100")

    assert document["groups"][0]["gpu_energy_joules"] == pytest.approx(SHARE * GPU_J, rel=5e-3)
    rows = [
        *document["groups"],
        *document["unattributed"],
        document["remainder"],
        document["total"],
    ]
    assert [row["emissions_grams"] for row in rows] == [{}] * len(rows)
    assert any(
        note.startswith("emissions are left out: the counters by owner")
        for note in document["notes"]
    )
    energy_j = given["groups"][0]["energy_joules"]
    assert given["groups"][0]["emissions_grams"]["given"] == pytest.approx(energy_j / KWH_J * 100)
    assert not any("left out" in note for note in given["notes"])
