"""Agreement of a fleet from raw samples with that from the queries of real servers."""

import contextlib

import pytest

from tests.analyzer.small_fleet import BARE_S, BEGIN_S, END_S, LATE_S, NODES
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.core.sources.promql import InstantServer
from wattline_analyzer.usage.local import fetch_local_fleet
from wattline_analyzer.usage.results import FleetRequest, fetch_fleet

WINDOWS = {
    "all": (BEGIN_S, END_S),
    "run-goes-on-at-both-edges": (BEGIN_S + 700.4, BEGIN_S + 2_100.9),
    "run-between-scrapes": (BEGIN_S + 3_900.5, BEGIN_S + 4_700.5),
    "counters-restart": (BEGIN_S + 3_001.5, BEGIN_S + 5_203.5),
    "runs-without-energy": (BARE_S, BARE_S + 900),
    "first-scrape-after-runs": (LATE_S - 300, LATE_S + 300),
}
KEYS = (("model", "user"), ("workload", "node"), ("gpu_model",), ("kind",))
SUMS = (
    "devices",
    "unclaimed",
    "claimed",
    "work",
    "working",
    "unmeasured",
    "grams",
    "device_grams",
    "runs",
    "idle",
)


@pytest.fixture(scope="module")
def history(fleet_history):
    with contextlib.closing(HistorySource(fleet_history)) as source:
        yield source


@pytest.mark.parametrize("by", KEYS, ids=",".join)
@pytest.mark.parametrize("window", WINDOWS)
def test_local_fleet_agrees_with_queries_of_prometheus(fleet_addresses, history, window, by):
    request = FleetRequest(by, "idle_shared", *WINDOWS[window], rules=False)
    # increase() of Prometheus extrapolates counters that restart
    precision = 6e-3 if window == "counters-restart" else 1e-9

    local, _ = fetch_local_fleet(history, request)
    queried = fetch(fleet_addresses["prometheus"], request)

    for name in SUMS:
        assert nonzero(getattr(local, name)) == pytest.approx(
            nonzero(getattr(queried, name)), rel=precision, abs=1e-6
        ), name


def test_local_fleet_emission_energy_agrees_with_queries(fleet_addresses, history):
    """The nodes have a constant intensity: the nodes with one have all energy with emissions."""
    request = FleetRequest(("node",), "idle_shared", *WINDOWS["all"], rules=False)

    local, _ = fetch_local_fleet(history, request)
    grams = sum(local.device_grams.values())
    intensities = {node.grams_per_kwh for node in NODES if node.grams_per_kwh}

    assert intensities == {200.0}
    for server in ("prometheus", "victoria-metrics"):
        queried = fetch(fleet_addresses[server], request)
        assert queried.emission_energy == pytest.approx(local.emission_energy, rel=6e-3)
    assert local.emission_energy == pytest.approx({"average": grams / 200 * 3.6e6})


def test_local_fleet_takes_namespace_of_pods(fleet_addresses, history):
    request = FleetRequest(("namespace",), "idle_shared", *WINDOWS["all"], rules=False)

    local, _ = fetch_local_fleet(history, request)
    queried = fetch(fleet_addresses["prometheus"], request)

    assert {keys for keys, _ in local.claimed} == {("",), ("blue",), ("green",), ("own",)}
    assert nonzero(local.claimed) == pytest.approx(nonzero(queried.claimed))


def fetch(address, request):
    with contextlib.closing(InstantServer(address)) as server:
        return fetch_fleet(server, request, lambda _: None)


def nonzero(sums):
    return {key: value for key, value in sums.items() if value}
