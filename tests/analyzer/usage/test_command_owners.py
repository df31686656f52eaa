"""Counters by owner in `analyzer usage`, and the series of runs where they are missing."""

import pytest

from tests.analyzer.fleet_nodes import FleetNode, FleetRun, node_series
from tests.analyzer.fleet_owners import owner_series
from tests.analyzer.small_fleet import BEGIN_S, END_S, RUN_W, fleet_series, write_samples
from tests.analyzer.usage.usage_rows import by_key, parts_of

SOURCES = ("prometheus", "victoria-metrics", "history")


def without_run_series(run_id):
    return [one for one in fleet_series() if one.labels.get("run_id") != run_id]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "window",
    [
        (BEGIN_S, END_S),
        (BEGIN_S + 700.4, BEGIN_S + 2_100.9),
        (BEGIN_S + 4_700.3, BEGIN_S + 5_203.1),
    ],
    ids=["all", "both-edges-in-runs", "shared-gpu"],
)
def test_usage_by_owner_counters_agrees_with_series_of_runs(usage, source, window):
    """A second key that only runs have makes the command read the series of runs."""
    owners, runs = (
        usage(source, by, since=window[0], until=window[1]) for by in ("user", "user,model")
    )

    assert (owners["from"], runs["from"]) == ("owner counters", "run series")
    sums = {}
    for row in runs["groups"]:
        sums[row["user"]] = sums.get(row["user"], 0) + row["energy_joules"]
    assert {
        user: row["energy_joules"] for user, row in by_key(owners, "user").items()
    } == pytest.approx(sums)
    assert owners["unattributed"][0]["energy_joules"] == pytest.approx(
        runs["unattributed"][0]["energy_joules"]
    )


def test_usage_runs_without_series_are_in_owners_or_the_remainder(usage, tmp_path):
    """The run `lossy` of u1 took two GPUs, CPU and DRAM of node b for 1,800 s; small runs have no
    series.
    """
    lossy_j = (RUN_W + 300) * 1_800
    history = str(write_samples(tmp_path, without_run_series("lossy")))

    owners, runs = usage(history, "user"), usage(history, "model")

    whole = usage("history", "user")
    assert (
        by_key(owners, "user")["u1"]["energy_joules"]
        == by_key(whole, "user")["u1"]["energy_joules"]
    )
    assert by_key(owners, "user")["u1"]["energy_uncertainty_joules"] is None
    assert runs["remainder"]["energy_joules"] == pytest.approx(lossy_j)
    assert sum(parts_of(runs, "energy_joules")) == pytest.approx(runs["total"]["energy_joules"])


def test_usage_without_owner_counters_for_the_window_uses_series_of_runs(usage, tmp_path):
    """An exporter that was updated in the window has counters by owner since then only."""
    late = [
        one
        for one in fleet_series()
        if not one.labels["__name__"].startswith("wattline_owner_")
        or one.labels["instance"] == "new:9847"
    ]

    document = usage(str(write_samples(tmp_path, late)), "user")

    assert document["from"] == "run series"
    assert by_key(document, "user")["u2"]["energy_joules"] == pytest.approx(2 * RUN_W * 900)


def test_usage_namespace_of_other_runs_uses_series_of_runs(usage):
    """The owner of a run is its user, so that its label `namespace` is in its own series only."""
    document = usage("history", "namespace")

    assert document["from"] == "run series"
    assert by_key(document, "namespace")["own"]["energy_joules"] == pytest.approx(RUN_W * 750)


def test_usage_owner_of_a_pod_is_its_namespace(usage, tmp_path):
    """A pod and a Slurm job take one GPU each for 600 s and 300 s, alone on the node; DRAM and CPU
    are divided.
    """
    node = FleetNode("n:9847", BEGIN_S - 86_400, BEGIN_S - 600, END_S, gpus=2)
    pod = {"discovered": "kubernetes", "namespace": "ml", "pod": "train-0"}
    job = {"discovered": "slurm", "user": "ada", "account": "physics"}
    runs = [
        FleetRun("pod-1", ("n:9847",), (0,), BEGIN_S + 100, BEGIN_S + 700, pod, "kubernetes"),
        FleetRun("slurm-1", ("n:9847",), (1,), BEGIN_S + 1_000, BEGIN_S + 1_300, job, "slurm"),
    ]
    history = str(write_samples(tmp_path, [*node_series(node, runs), *owner_series(node, runs)]))

    namespaces, users, accounts = (
        usage(history, by) for by in ("namespace,kind", "user", "account")
    )

    assert {one["from"] for one in (namespaces, users, accounts)} == {"owner counters"}
    assert {
        (row["namespace"], row["kind"]): row["energy_joules"] for row in namespaces["groups"]
    } == {
        ("ml", "kubernetes"): pytest.approx(RUN_W * 600),
        ("(none)", "slurm"): pytest.approx(RUN_W * 300),
    }
    assert by_key(users, "user")["ada"]["gpu_hours"] == pytest.approx(300 / 3_600)
    assert by_key(accounts, "account").keys() == {"physics", "(none)"}
    # two GPUs, of which the rest is free
    assert users["unattributed"][0]["gpu_hours"] == pytest.approx(
        (2 * 7_200 - 900) / 3_600, rel=0.005
    )


def test_usage_by_owner_has_no_figures_of_runs(usage):
    document = usage("history", "owner")
    owners = by_key(document, "owner")

    assert owners["u2"]["energy_joules"] == pytest.approx(2 * RUN_W * 900)
    assert {(row["runs"], row["energy_uncertainty_joules"]) for row in owners.values()} == {
        (None, None)
    }


def test_usage_by_owner_and_label_is_refused(call, sources):
    code, _, stderr = call(
        *(
            "usage",
            "--source",
            sources["history"],
            "--since",
            BEGIN_S,
            "--until",
            END_S,
            "--by",
            "owner,model",
        )
    )

    assert code == 1
    assert "no counters by owner of the whole window at " in stderr
