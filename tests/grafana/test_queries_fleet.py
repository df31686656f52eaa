"""Energy, cost and waste of the fleet by the panels' queries."""

import pytest

from tests.grafana.cluster import BEGIN_S, OFFSET_S, SCRAPE_S
from tests.grafana.query import AT_S, fetch, values

SWEEP_J = 300 * (290 + 360 + 450 + 369)
SERVE_J, FLASH_J = 210_000, 2_000


def last_used_scrape_s(server):
    """Return seconds from the start of the hour to the last scrape used by the rules (a minute
    before their last).

    Prometheus derives the evaluation offset from the name of the rules' file.
    """
    result = fetch(
        server, "query", query="instance:wattline_device_energy_joules:increase5m[1h]", time=AT_S
    )["result"]
    last_s = max(float(t) for one in result for t, _ in one["values"])
    return (last_s - 60 - BEGIN_S - OFFSET_S) // SCRAPE_S * SCRAPE_S + OFFSET_S


def tenant_energy_j(until_s):
    """Return the energy from 1,800 s on, alternating between 520 W and 480 W every 15 s."""
    pairs, rest_s = divmod(until_s - 1_800, 30)
    return pairs * 15_000 + 520 * min(rest_s, 15) + 480 * max(rest_s - 15, 0)


def test_fleet_unattributed_share_is_idle_power(server):
    until_s = last_used_scrape_s(server)
    hour_s = until_s - OFFSET_S
    # four GPUs at 60 W, less the runs' time: 3 and 1 of 300 s, from 1,800 s on, 5 s and 600 s
    idle_j = 60 * ((hour_s - 900) + (hour_s - 300) + (1_800 - OFFSET_S) + (hour_s - 605))
    all_j = SWEEP_J + tenant_energy_j(until_s) + SERVE_J + FLASH_J + idle_j

    assert until_s > 3_100
    assert values(server, "wattline-fleet", "Energy", key="component")["gpu"] == pytest.approx(
        all_j
    )
    (share,) = values(server, "wattline-fleet", "Unattributed GPU energy").values()
    assert share == pytest.approx(idle_j / all_j)
    (cost,) = values(
        server, "wattline-fleet", "Cost of unattributed GPU energy", price="0.5"
    ).values()
    assert cost == pytest.approx(idle_j / 3.6e6 * 0.5)


def test_fleet_users_namespaces_and_models_have_their_energy(server):
    tenants_j = tenant_energy_j(last_used_scrape_s(server))
    users = {"ann": SWEEP_J, "ben": tenants_j, "eve": SERVE_J, "(none)": FLASH_J}
    assert values(server, "wattline-fleet", "Top users", key="label_user") == pytest.approx(users)

    kwh = {"nlp": SWEEP_J / 3.6e6, "web": tenants_j / 3.6e6, "(none)": (SERVE_J + FLASH_J) / 3.6e6}
    title = "Energy and cost by namespace"
    assert values(server, "wattline-fleet", title, "A", "label_namespace") == pytest.approx(kwh)
    cost = {name: amount * 0.25 for name, amount in kwh.items()}
    assert values(server, "wattline-fleet", title, "B", "label_namespace") == pytest.approx(cost)

    tokens = 240 * (50 + 90 + 90 + 100) + 100 * (last_used_scrape_s(server) - 1_800)
    per_token = values(server, "wattline-fleet", "Energy per generated token", key="label_model")
    assert per_token["llama-8b"] == pytest.approx((SWEEP_J + tenants_j / 2) / tokens)


def test_emissions_by_model_follow_the_attributed_share(server):
    emissions_g = values(server, "wattline-carbon", "Emissions by model", key="label_model")

    assert emissions_g["llama-70b"] == pytest.approx(
        (SERVE_J + tenant_energy_j(last_used_scrape_s(server)) / 2) / 3.6e6 * 200, rel=1e-5
    )
    assert emissions_g["(none)"] == pytest.approx(FLASH_J / 3.6e6 * 200, rel=1e-4)


def test_usage_of_owners_has_energy_cost_and_gpu_time(server):
    board, table = "wattline-waste", "Energy, cost and GPU time by owner"

    # ann: 300 s each at 290, 360, 450 and 369 W; web: two halves of 500 W for 1,800 s; eve: 350 W
    # for 600 s; root: 5 s
    joules = {
        "ann": 300 * (290 + 360 + 450 + 369),
        "web": 500 * 1_800,
        "eve": 350 * 600,
        "root": 400 * 5,
    }
    seconds = {"slurm": 4 * 300, "kubernetes": 1_800}
    # two GPUs on each of two nodes draw 60 W while no run uses them
    free_j = 60 * (4 * 3_600 - sum(seconds.values()) - 600 - 5)
    total_j = sum(joules.values()) + free_j
    close = 0.03  # a server that extrapolates is up to one scrape off
    assert values(server, board, "Energy") == {(): pytest.approx(total_j, rel=close)}
    assert values(server, board, "Cost", price="0.5") == {
        (): pytest.approx(total_j / 3.6e6 * 0.5, rel=close)
    }
    assert values(server, board, "GPU time") == {
        (): pytest.approx(sum(seconds.values()) + 605, rel=close)
    }
    assert values(server, board, "Unattributed GPU energy") == {
        (): pytest.approx(free_j / total_j, rel=close)
    }
    assert values(server, board, "Top owners", key="owner") == pytest.approx(joules, rel=close)
    assert values(server, board, "Top accounts", key="account")["physics"] == pytest.approx(
        joules["ann"], rel=close
    )
    assert values(server, board, table, "A", "owner")["ann"] == pytest.approx(
        joules["ann"] / 3.6e6, rel=close
    )
    times = values(server, board, table, "C", "kind")
    assert {kind: times[kind] for kind in seconds} == pytest.approx(seconds, rel=close)
    powers = values(server, board, "Power by kind of owner", key="kind")  # at the end
    assert (powers["kubernetes"], powers["none"]) == (
        pytest.approx(500, rel=close),
        pytest.approx(3 * 60, rel=close),
    )


def test_waste_board_shows_holders_limits_and_throttling(server):
    waste = "wattline-waste"

    # a run holds GPU 1 of node b, a pod GPU 0 of node a; a model waits on GPU 1 of node a
    assert values(server, waste, "Held and idle GPUs") == {(): 2}
    assert values(server, waste, "Execution-idle GPUs") == {(): 1}
    assert values(server, waste, "Throttled GPUs") == {(): 1}
    assert values(server, waste, "GPUs below their default limit") == {(): 1}
    assert values(server, waste, "Runs with idle GPUs", "A", "run_id") == {"notebook-1": 1}
    assert values(server, waste, "Runs with idle GPUs", "B", "run_id") == {"notebook-1": 60}
    assert values(server, waste, "Pods with idle GPUs", "B", "pod") == {"notebook-2": 60}
    assert values(server, waste, "Power limits below the default", key="instance") == {
        "b:9847": 500
    }
    assert values(server, waste, "Throttled nodes", key="reason") == {
        "hw_thermal_slowdown": pytest.approx(0.5, rel=0.1)
    }
    states = [values(server, waste, "GPUs by state", ref) for ref in "ABC"]
    assert [list(state.values()) for state in states] == [[1], [2], [1]]
    # 60 W each, of 45 W at deep idle
    excess = [values(server, waste, "Power of idle GPUs above deep idle", ref) for ref in "AB"]
    assert [list(power.values()) for power in excess] == [[30], [15]]
