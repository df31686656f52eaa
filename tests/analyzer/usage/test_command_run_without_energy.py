"""Runs without energy in `analyzer usage` and `analyzer fleet`."""

import json

import pytest

from tests.analyzer.fleet_nodes import FleetNode, FleetRun, node_series
from tests.analyzer.fleet_owners import owner_series
from tests.analyzer.small_fleet import BEGIN_S, END_S, write_samples

NODE = FleetNode("n:9847", BEGIN_S - 86_400, BEGIN_S - 600, END_S, gpus=1)
RUNS = [
    FleetRun("train-1", ("n:9847",), (0,), BEGIN_S + 100, BEGIN_S + 700, {"user": "ada"}, "train"),
    FleetRun(
        "python-1", ("n:9847",), (), BEGIN_S + 1_000, BEGIN_S + 1_300, {"user": "ada"}, "python"
    ),
]


@pytest.fixture
def history(tmp_path):
    """Write a history in which the second run has no GPU, and no CPU energy."""
    series = [*node_series(NODE, RUNS), *owner_series(NODE, RUNS[:1])]
    kept = [
        one
        for one in series
        if one.labels.get("run_id") != "python-1" or "joules" not in one.labels["__name__"]
    ]
    return str(write_samples(tmp_path, kept))


@pytest.mark.parametrize("command", ["usage"])
@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("user", {"ada": 2}),
        ("workload", {"train": 1, "python": 1}),
        ("user,workload", {"train": 1, "python": 1}),
    ],
)
def test_runs_without_energy_count_with_each_key(call, history, command, by, expected):
    window = ("--source", history, "--since", BEGIN_S, "--until", END_S)

    code, out, err = call(command, *window, "--by", by, "--format", "json")

    assert code == 0, err
    groups = json.loads(out)["groups"]
    assert {group[by.rpartition(",")[2]]: group["runs"] for group in groups} == expected


def test_usage_row_of_run_without_energy_has_no_kwh(call, history):
    code, out, err = call(
        "usage", "--source", history, "--since", BEGIN_S, "--until", END_S, "--by", "workload"
    )

    assert code == 0, err
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line[:1].isalpha()}
    assert rows["python"][1:4] == ["1", "–", "–"]
    assert (next(line for line in out.splitlines() if line.startswith("(runs)"))).split()[1] == "2"
