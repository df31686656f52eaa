"""Every query of every panel, asked of a real Prometheus and a real VictoriaMetrics."""

import pytest

from tests.grafana.ask import ask, boards, fetch, filled, panel, panels
from tests.grafana.cluster import BEGIN_S, END_S, OFFSET_S, SCRAPE_S, SERVE

AT_S = END_S + 30
QUERIES = [
    pytest.param(target, id=f"{uid.removeprefix('wattline-')}-{each['title']}-{target['refId']}".replace(" ", "_"))
    for uid, board in boards().items()
    for each in panels(board)
    for target in each["targets"]
]


def values(server, board, title, ref="A", key=None, **chosen):
    """By the text of the label `key`, or all labels."""
    target = next(each for each in panel(board, title)["targets"] if each["refId"] == ref)
    found = ask(server, target, AT_S, run=SERVE.run_id, **chosen)
    return {one.labels.get(key, "") if key else tuple(sorted(one.labels.items())): one.value for one in found}


@pytest.mark.parametrize("target", QUERIES)
def test_every_query_of_every_panel_finds_data(addresses, target):
    for server in addresses.values():
        assert ask(server, target, AT_S, run=SERVE.run_id)


def test_the_runs_table_has_joules_time_joules_per_token_and_grams(server):
    runs = ("wattline-runs", "Runs")

    # 600 s at 350 W of one GPU, and 100 W of CPU; 700 tokens a second for the last 540 s of it
    assert values(server, *runs, "A", "run_id")["serve-1"] == pytest.approx(210_000)
    assert values(server, *runs, "B", "run_id")["serve-1"] == 600
    assert values(server, *runs, "C", "run_id")["serve-1"] == pytest.approx(210_000 / 378_000)
    assert values(server, *runs, "D", "run_id")["serve-1"] == pytest.approx(270_000)
    # 200 g/kWh
    assert values(server, *runs, "E", "run_id")["serve-1"] == pytest.approx(210_000 / 3.6e6 * 200)
    assert values(server, *runs, "F", "run_id")["serve-1"] == SERVE.begin_s * 1_000


def test_what_is_pushed_is_twenty_seconds_behind_and_fifty_samples_a_second(server):
    behind_s = values(server, "wattline-health", "Pushing is behind by", key="instance")
    # and the newest scrape is up to a quarter of a minute old
    assert behind_s == pytest.approx({"a:9847": 27.5, "b:9847": 27.5}, abs=SCRAPE_S / 2)
    assert values(server, "wattline-health", "Samples pushed", key="outcome") == pytest.approx({"accepted": 50.0})


def test_a_run_of_five_seconds_has_all_of_its_joules_and_none_per_token(server):
    assert values(server, "wattline-runs", "Runs", "A", "run_id")["flash"] == 2_000
    assert "flash" not in values(server, "wattline-runs", "Runs", "C", "run_id")


def test_runs_are_those_of_the_chosen_model_node_and_cluster(server):
    runs = ("wattline-runs", "Runs", "A", "run_id")

    assert set(values(server, *runs, model="llama-70b")) == {"serve-1", "tenant-batch"}
    assert set(values(server, *runs, node="(b:9847)")) == {"serve-1", "flash", "tenant-batch", "tenant-chat"}
    assert set(values(server, *runs, cluster="(east)")) == {"cap-300-0", "cap-400-0", "cap-400-1", "cap-500-0"}


def test_results_and_energy_per_unit_of_a_run_are_in_tables(server):
    results = {"loss": 1.25, "ttft_seconds_p99": 0.31}

    assert values(server, "wattline-runs", "Results", key="name") == results
    per_unit = values(server, "wattline-runs", "Energy per unit of work", key="unit", model="llama-70b", node="b.*")
    assert per_unit["requests"] == pytest.approx(210_000 / 3_780)


def test_a_sweep_shows_joules_per_unit_and_throughput_by_cap_and_the_cap_of_least(server):
    cap = "label_power_limit_watts"

    # 290 W at 50/s; 360 W and 369 W at 90/s; 450 W at 100/s
    per_unit = {"300": 5.8, "400": pytest.approx((4.0 + 4.1) / 2), "500": pytest.approx(4.5)}
    assert values(server, "wattline-sweep", "Energy per unit of work", key=cap) == per_unit
    throughput = {"300": pytest.approx(50), "400": pytest.approx(90), "500": pytest.approx(100)}
    assert values(server, "wattline-sweep", "Throughput", key=cap) == throughput
    joules = {"300": 69_600, "400": (86_400 + 88_560) / 2, "500": 108_000}
    assert values(server, "wattline-sweep", "Energy of the phase measure", key=cap) == pytest.approx(joules)
    assert values(server, "wattline-sweep", "Cap of least energy", key=cap) == {"400": pytest.approx(4.05)}
    assert values(server, "wattline-sweep", "Runs of each cap", key=cap) == {"300": 1, "400": 2, "500": 1}


def test_tenants_have_half_of_the_gpu_each_and_their_own_joules_per_token(server):
    # 250 W each; 100 and 50 tokens a second. Power goes up and down by 4 % around its mean.
    per_token = values(server, "wattline-tenants", "Energy per unit by tenant", key="label_tenant")

    assert per_token == {"chat": pytest.approx(2.5, rel=0.01), "batch": pytest.approx(5.0, rel=0.01)}
    watts = values(server, "wattline-tenants", "Power by tenant", key="label_tenant")
    assert watts == {"chat": pytest.approx(250, rel=0.03), "batch": pytest.approx(250, rel=0.03)}
    assert set(values(server, "wattline-tenants", "Tenants", key="label_mps")) == {"on"}


def by_gpu_and_cap(*asked):
    found = ((dict(labels), value) for labels, value in values(*asked).items())
    return {(labels["gpu"], labels["label_power_limit_watts"]): value for labels, value in found}


def test_time_and_energy_per_unit_are_by_gpu(server):
    table = ("wattline-variability", "Time and energy per unit of work, by GPU")

    # what was run at one cap only is compared with its like
    assert by_gpu_and_cap(server, *table, "A") == pytest.approx(
        {("0", "300"): 1 / 50, ("0", "400"): 1 / 90, ("0", "500"): 1 / 100, ("1", "400"): 1 / 90}
    )
    assert by_gpu_and_cap(server, *table, "B") == pytest.approx(
        {("0", "300"): 5.8, ("0", "400"): 4.0, ("0", "500"): 4.5, ("1", "400"): 4.1}
    )


OF_CAPS_J = 300 * (290 + 360 + 450 + 369)
OF_SERVE_J, OF_FLASH_J = 210_000, 2_000


def taken_s(server):
    """From the hour's begin to the last scrape that the rules took: a minute before their last sample, or before that.

    When that is, Prometheus draws from the name of the rules' file.
    """
    found = fetch(server, "query", query="instance:wattline_device_energy_joules:increase5m[1h]", time=AT_S)["result"]
    last_s = max(float(t) for one in found for t, _ in one["values"])
    return (last_s - 60 - BEGIN_S - OFFSET_S) // SCRAPE_S * SCRAPE_S + OFFSET_S


def of_tenants_j(until_s):
    """From 1,800 s on, 520 W and 480 W by turns, 15 s each."""
    pairs, rest_s = divmod(until_s - 1_800, 30)
    return pairs * 15_000 + 520 * min(rest_s, 15) + 480 * max(rest_s - 15, 0)


def test_the_fleets_share_of_no_run_is_idle_power(server):
    until_s = taken_s(server)
    hour_s = until_s - OFFSET_S
    # four GPUs at 60 W, less the runs' time: 3 and 1 of 300 s, from 1,800 s on, 5 s and 600 s
    idle_j = 60 * ((hour_s - 900) + (hour_s - 300) + (1_800 - OFFSET_S) + (hour_s - 605))
    all_j = OF_CAPS_J + of_tenants_j(until_s) + OF_SERVE_J + OF_FLASH_J + idle_j

    assert until_s > 3_100
    assert values(server, "wattline-fleet", "Energy", key="component")["gpu"] == pytest.approx(all_j)
    (share,) = values(server, "wattline-fleet", "GPU energy of no run").values()
    assert share == pytest.approx(idle_j / all_j)
    (cost,) = values(server, "wattline-fleet", "Cost of GPU energy of no run", price="0.5").values()
    assert cost == pytest.approx(idle_j / 3.6e6 * 0.5)


def test_the_fleets_users_namespaces_and_models_have_what_their_runs_took(server):
    tenants_j = of_tenants_j(taken_s(server))
    users = {"ann": OF_CAPS_J, "ben": tenants_j, "eve": OF_SERVE_J, "(none)": OF_FLASH_J}
    assert values(server, "wattline-fleet", "Top users", key="label_user") == pytest.approx(users)

    kwh = {"nlp": OF_CAPS_J / 3.6e6, "web": tenants_j / 3.6e6, "(none)": (OF_SERVE_J + OF_FLASH_J) / 3.6e6}
    title = "Energy and cost by namespace"
    assert values(server, "wattline-fleet", title, "A", "label_namespace") == pytest.approx(kwh)
    cost = {name: amount * 0.25 for name, amount in kwh.items()}
    assert values(server, "wattline-fleet", title, "B", "label_namespace") == pytest.approx(cost)

    tokens = 240 * (50 + 90 + 90 + 100) + 100 * (taken_s(server) - 1_800)
    per_token = values(server, "wattline-fleet", "Energy per generated token", key="label_model")
    assert per_token["llama-8b"] == pytest.approx((OF_CAPS_J + tenants_j / 2) / tokens)


def test_emissions_of_models_are_those_of_their_share(server):
    grams = values(server, "wattline-carbon", "Emissions by model", key="label_model")

    assert grams["llama-70b"] == pytest.approx((OF_SERVE_J + of_tenants_j(taken_s(server)) / 2) / 3.6e6 * 200, rel=1e-5)
    assert grams["(none)"] == pytest.approx(OF_FLASH_J / 3.6e6 * 200, rel=1e-4)


def test_a_gpu_that_does_not_answer_is_counted_as_down(server):
    assert values(server, "wattline-health", "GPUs that answer", "A", "instance") == {"a:9847": 2, "b:9847": 2}
    assert values(server, "wattline-health", "GPUs that answer", "B", "instance") == {"a:9847": 0, "b:9847": 1}


@pytest.mark.parametrize("uid", sorted(boards()))
def test_each_column_of_a_table_has_a_name_or_is_left_out(addresses, uid):
    for each in panels(boards()[uid]):
        if "transformations" not in each:
            continue
        steps = next(step["options"] for step in each["transformations"] if step["id"] == "organize")
        targets = each["targets"]
        for target in targets:
            fields = {name for one in ask(addresses["prometheus"], target, AT_S) for name in one.labels}
            fields.add("Value" if len(targets) == 1 else f"Value #{target['refId']}")
            assert fields <= {*steps["renameByName"], *steps["excludeByName"]}, each["title"]
            not_always = {"cluster", "label_batch_size", *(f"Value #{t['refId']}" for t in targets)}
            assert fields >= {*steps["renameByName"]} - not_always
        shown = set(steps["renameByName"].values())
        overridden = {one["matcher"]["options"] for one in each["fieldConfig"].get("overrides", [])}
        assert overridden <= shown, each["title"]
        assert each["options"].get("xField", next(iter(shown))) in shown


@pytest.mark.parametrize("uid", sorted(boards()))
def test_each_variable_finds_its_choices(addresses, uid):
    known = {
        "cluster": {"east"},
        "node": {"a:9847", "b:9847"},
        "gpu": {"0", "1", "2"},
        "model": {"llama-8b", "llama-70b"},
        "experiment": {"caps", "pair"},
    }
    for variable in boards()[uid]["templating"]["list"]:
        if variable["type"] != "query":
            continue
        selector, _, label = variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rpartition(", ")
        for server in addresses.values():
            asked = {"match[]": filled(selector), "start": BEGIN_S, "end": AT_S}
            found = set(fetch(server, f"label/{label}/values", **asked))
            assert found == known[variable["name"]] if variable["name"] in known else "serve-1" in found


def test_runs_are_marked_where_they_begin_and_where_they_end(server):
    begin, end = boards()["wattline-runs"]["annotations"]["list"]

    for mark, moment_s in ((begin, SERVE.begin_s), (end, SERVE.end_s)):
        assert mark["useValueForTime"] is True
        found = {one.labels["run_id"]: one.value for one in ask(server, {"expr": mark["expr"]}, AT_S)}
        assert found["serve-1"] == moment_s * 1_000
