"""Every query of every panel on a real Prometheus and a real VictoriaMetrics."""

import pytest

from tests.grafana.cluster import BEGIN_S, SERVE
from tests.grafana.query import AT_S, ask, boards, fetch, fill_variables, panel, panels, values

QUERIES = [
    pytest.param(
        target,
        id=f"{uid.removeprefix('wattline-')}-{each['title']}-{target['refId']}".replace(" ", "_"),
    )
    for uid, board in boards().items()
    for each in panels(board)
    for target in each["targets"]
]


@pytest.mark.parametrize("target", QUERIES)
def test_query_of_each_panel_returns_data(addresses, target):
    for server in addresses.values():
        assert ask(server, target, AT_S, run=SERVE.run_id)


def test_runs_table_shows_energy_time_and_emissions(server):
    runs = ("wattline-runs", "Runs")

    # 600 s at 350 W of one GPU, and 100 W of CPU; 700 tokens a second for the last 540 s of it
    assert values(server, *runs, "A", "run_id")["serve-1"] == pytest.approx(210_000)
    assert values(server, *runs, "B", "run_id")["serve-1"] == 600
    assert values(server, *runs, "C", "run_id")["serve-1"] == pytest.approx(350 * 540 / 378_000)
    assert values(server, *runs, "D", "run_id")["serve-1"] == pytest.approx(270_000)
    # 200 g/kWh
    assert values(server, *runs, "E", "run_id")["serve-1"] == pytest.approx(210_000 / 3.6e6 * 200)
    assert values(server, *runs, "F", "run_id")["serve-1"] == SERVE.begin_s * 1_000


def test_runs_table_five_second_run_has_all_its_energy(server):
    assert values(server, "wattline-runs", "Runs", "A", "run_id")["flash"] == 2_000
    assert "flash" not in values(server, "wattline-runs", "Runs", "C", "run_id")


@pytest.mark.parametrize("title", ["Runs", "Energy per unit of work"])
def test_runs_tables_are_limited_to_the_newest_runs(server, title):
    for target in panel("wattline-runs", title)["targets"]:
        assert "topk(200, " in target["expr"]
        three = target | {"expr": target["expr"].replace("topk(200, ", "topk(3, ")}
        # started last: serve-1 after 2,400 s, flash after 2,001 s, a tenant after 1,800 s
        runs = {one.labels["run_id"] for one in ask(server, three, AT_S)}
        assert runs <= {"serve-1", "flash", "tenant-chat", "tenant-batch"}
        assert len(runs) <= 3


def test_runs_table_is_filtered_by_model_node_and_cluster(server):
    runs = ("wattline-runs", "Runs", "A", "run_id")

    assert set(values(server, *runs, model="llama-70b")) == {"serve-1", "tenant-batch"}
    assert set(values(server, *runs, node="(b:9847)")) == {
        "serve-1",
        "flash",
        "tenant-batch",
        "tenant-chat",
    }
    assert set(values(server, *runs, cluster="(east)")) == {
        "cap-300-0",
        "cap-400-0",
        "cap-400-1",
        "cap-500-0",
    }


def test_results_and_energy_per_unit_are_shown(server):
    results = {"loss": 1.25, "ttft_seconds_p99": 0.31}

    assert values(server, "wattline-runs", "Results", key="name") == results
    per_unit = values(
        server,
        "wattline-runs",
        "Energy per unit of work",
        key="unit",
        model="llama-70b",
        node="b.*",
    )
    assert per_unit["requests"] == pytest.approx(350 * 540 / 3_780)  # in the phase measure


def test_sweep_shows_energy_and_throughput_by_power_limit(server):
    cap = "label_power_limit_watts"

    # 290 W at 50/s; 360 W and 369 W at 90/s; 450 W at 100/s
    per_unit = {"300": 5.8, "400": pytest.approx((4.0 + 4.1) / 2), "500": pytest.approx(4.5)}
    assert values(server, "wattline-sweep", "Energy per unit of work", key=cap) == per_unit
    throughput = {"300": pytest.approx(50), "400": pytest.approx(90), "500": pytest.approx(100)}
    assert values(server, "wattline-sweep", "Throughput", key=cap) == throughput
    joules = {"300": 69_600, "400": (86_400 + 88_560) / 2, "500": 108_000}
    assert values(
        server, "wattline-sweep", "Energy of the phase measure", key=cap
    ) == pytest.approx(joules)
    assert values(server, "wattline-sweep", "Power limit of least energy", key=cap) == {
        "400": pytest.approx(4.05)
    }
    assert values(server, "wattline-sweep", "Runs of each power limit", key=cap) == {
        "300": 1,
        "400": 2,
        "500": 1,
    }


def test_tenants_sharing_a_gpu_get_half_of_its_power_each(server):
    # 250 W each; 100 and 50 tokens a second. Power goes up and down by 4 % around its mean.
    per_token = values(server, "wattline-tenants", "Energy per unit by tenant", key="label_tenant")

    assert per_token == {
        "chat": pytest.approx(2.5, rel=0.01),
        "batch": pytest.approx(5.0, rel=0.01),
    }
    watts = values(server, "wattline-tenants", "Power by tenant", key="label_tenant")
    assert watts == {"chat": pytest.approx(250, rel=0.03), "batch": pytest.approx(250, rel=0.03)}
    assert set(values(server, "wattline-tenants", "Tenants", key="label_mps")) == {"on"}


def test_requests_have_their_energy_and_rate(server):
    def at_one_node(title, ref="A"):
        return values(server, "wattline-requests", title, ref, "model", node="(b:9847)")

    # the second of four requests: in the middle of (100 J, 250 J]; 3.8 of four: 0.8 of (250 J, 500
    # J]
    assert at_one_node("Energy of a request") == pytest.approx({"llama-70b": 175})
    assert at_one_node("Energy of a request", "B") == pytest.approx({"llama-70b": 450})
    assert at_one_node("Power of requests") == pytest.approx({"llama-70b": 80})
    assert at_one_node("Requests per second") == pytest.approx({"llama-70b": 0.5})
    assert at_one_node("Mean energy of a request") == pytest.approx({"llama-70b": 200})
    by_user = [
        values(server, "wattline-requests", "Energy of requests by user", ref, "user")
        for ref in "ABC"
    ]
    hour_s = 3_600  # on each of two nodes, in a cluster each
    assert by_user[0] == pytest.approx({"ann": 80 * hour_s}, rel=0.01)
    assert by_user[1] == pytest.approx({"ann": 0.5 * hour_s}, rel=0.01)
    assert by_user[2] == pytest.approx({"ann": 200}, rel=0.01)


def by_gpu_and_cap(*queries):
    result = ((dict(labels), value) for labels, value in values(*queries).items())
    return {(labels["gpu"], labels["label_power_limit_watts"]): value for labels, value in result}


def test_variability_shows_time_and_energy_per_unit_by_gpu(server):
    table = ("wattline-variability", "Time and energy per unit of work, by GPU")

    # only runs at the same power limit are comparable
    assert by_gpu_and_cap(server, *table, "A") == pytest.approx(
        {("0", "300"): 1 / 50, ("0", "400"): 1 / 90, ("0", "500"): 1 / 100, ("1", "400"): 1 / 90}
    )
    assert by_gpu_and_cap(server, *table, "B") == pytest.approx(
        {("0", "300"): 5.8, ("0", "400"): 4.0, ("0", "500"): 4.5, ("1", "400"): 4.1}
    )


def test_unresponsive_gpu_is_counted_as_down(server):
    assert values(server, "wattline-health", "Responding GPUs", "A", "instance") == {
        "a:9847": 2,
        "b:9847": 2,
    }
    assert values(server, "wattline-health", "Responding GPUs", "B", "instance") == {
        "a:9847": 0,
        "b:9847": 1,
    }


@pytest.mark.parametrize("uid", sorted(boards()))
def test_table_columns_are_named_or_hidden(addresses, uid):
    for each in panels(boards()[uid]):
        if "transformations" not in each:
            continue
        steps = next(
            step["options"] for step in each["transformations"] if step["id"] == "organize"
        )
        targets = each["targets"]
        for target in targets:
            fields = {
                name for one in ask(addresses["prometheus"], target, AT_S) for name in one.labels
            }
            fields.add("Value" if len(targets) == 1 else f"Value #{target['refId']}")
            assert fields <= {*steps["renameByName"], *steps["excludeByName"]}, each["title"]
            not_always = {"cluster", "label_batch_size", *(f"Value #{t['refId']}" for t in targets)}
            assert fields >= {*steps["renameByName"]} - not_always
        shown = set(steps["renameByName"].values())
        overridden = {one["matcher"]["options"] for one in each["fieldConfig"].get("overrides", [])}
        assert overridden <= shown, each["title"]
        assert each["options"].get("xField", next(iter(shown))) in shown


@pytest.mark.parametrize("uid", sorted(boards()))
def test_variables_list_their_values(addresses, uid):
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
        selector, _, label = (
            variable["query"]["query"]
            .removeprefix("label_values(")
            .removesuffix(")")
            .rpartition(", ")
        )
        for server in addresses.values():
            queries = {"match[]": fill_variables(selector), "start": BEGIN_S, "end": AT_S}
            result = set(fetch(server, f"label/{label}/values", **queries))
            assert (
                result == known[variable["name"]]
                if variable["name"] in known
                else "serve-1" in result
            )


def test_annotations_mark_start_and_end_of_runs(server):
    begin, end = boards()["wattline-runs"]["annotations"]["list"]

    for mark, moment_s in ((begin, SERVE.begin_s), (end, SERVE.end_s)):
        assert mark["useValueForTime"] is True
        result = {
            one.labels["run_id"]: one.value for one in ask(server, {"expr": mark["expr"]}, AT_S)
        }
        assert moment_s is not None
        assert result["serve-1"] == moment_s * 1_000


def test_overview_counts_gpus_and_lists_nodes(server):
    overview = "wattline-overview"

    assert values(server, overview, "GPUs", "A") == {(): 4}
    assert values(server, overview, "GPUs", "B") == {(): 1}
    # at the end two tenants at 480 or 520 W, and three idle GPUs
    (power,) = values(server, overview, "Power").values()
    assert power == pytest.approx(500 + 3 * 60, abs=20)
    assert values(server, overview, "Utilization", "A") == {(): 0.25}
    (most, least) = sorted(
        values(server, overview, "Nodes with the highest power", "A", "instance").values()
    )[::-1]
    assert (most, least) == (pytest.approx(560, abs=20), 120)
    idle = ("Nodes with the highest power", "D", "instance")
    assert values(server, overview, *idle) == {"a:9847": 2, "b:9847": 1}
    assert values(server, overview, "Silent GPUs", key="uuid") == {"GPU-lost": 0}
    assert values(server, overview, "XID errors", key="xid") == {"79": 1}
    bands = [values(server, overview, "GPUs by utilization", ref) for ref in "ABCD"]
    assert [list(band.values()) for band in bands] == [[3], [0], [0], [1]]
