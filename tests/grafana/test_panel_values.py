"""Values of panels against known energy, work and emissions on a real Prometheus and
VictoriaMetrics.
"""

import pytest

from tests.grafana.fault_series import END_S, LLAMA, NODES, QWEN, SHORT_RUNS, TROUBLE_S, TWIN
from tests.grafana.panel_values import View
from tests.grafana.query import boards, panels
from tests.grafana.week_series import DAY_S, EMISSIONS_G, WEEK_END_S

ONE, OTHER = "west.1 gpu-1.example.com:9847", "west.1 gpu-1xexample.com:9847"
THIRD = f"westx1 {TWIN}"
RUN_IDS = {run.run_id for _, runs in NODES.values() for run in runs}


@pytest.fixture
def hour(server):
    return lambda end_s=END_S, **chosen: View(server, end_s, chosen=chosen)


def test_gpu_energy_includes_time_without_samples(hour):
    joules = hour().figures("wattline-node", "Energy of each GPU")

    # 1,200 s at 300 W, 25 s at 400 W, 600 s at 200 W, else 60 W
    assert joules[f"{ONE} GPU 0"] == pytest.approx(
        360_000 + 10_000 + 120_000 + 60 * 1_775, rel=0.01
    )
    assert joules[f"{ONE} GPU 1"] == pytest.approx(900 * 500 + 60 * 2_700, rel=0.01)
    # 60 W from the 1,800th second on; GPU 0 until it is lost at the 3,000th
    assert joules[f"{THIRD} GPU 0"] == pytest.approx(72_000, rel=0.01)
    assert joules[f"{THIRD} GPU 1"] == pytest.approx(108_000, rel=0.01)


def test_power_panel_shows_sampled_values(hour):
    watts = hour().lines("wattline-node", "Power of each GPU")
    held_s = TROUBLE_S + 645

    # 400 W and 20 W more or less, under a cap of 400 W; 300 W without one
    assert watts[f"{OTHER} GPU 0"][held_s] in {380, 420}
    assert watts[f"limit, {OTHER} GPU 0"][held_s] == 400
    assert (watts[f"{ONE} GPU 0"][held_s], watts[f"limit, {ONE} GPU 0"][held_s]) == (300, 700)
    assert hour().figures("wattline-carbon", "Now") == {"GB gb average (actual)": 200}
    apart = hour().legend("wattline-health", "Counter against integral")
    assert apart[f"{ONE} GPU 0"] == pytest.approx({"mean": 0.01, "max": 0.01})


def test_runs_table_has_one_complete_row_for_each_run(hour):
    runs = hour().table("wattline-runs", "Runs", "run")

    assert set(runs) == RUN_IDS
    assert runs["steady"]["energy, GPUs"] == pytest.approx(360_000)
    assert runs["steady"]["per unit"] == pytest.approx(360_000 / 12_000)
    assert runs["steady"]["emissions"] == pytest.approx(20)
    assert [runs[each.run_id]["energy, GPUs"] for each in SHORT_RUNS] == pytest.approx([2_000] * 5)
    # 200 W from its begin to the last scrape of the hour, over the exporter's restart
    assert runs["open"]["energy, GPUs"] == pytest.approx(200 * 588.2)
    assert runs["open"]["duration"] == pytest.approx(588.2)


def test_runs_table_two_node_run_adds_energy_and_counts_tokens_once(hour):
    wide = hour().table("wattline-runs", "Runs", "run")["wide"]

    assert wide["energy, GPUs"] == pytest.approx(2 * 450_000)
    assert wide["attributed share of GPUs"] == pytest.approx(2 * 450_000)
    assert wide["energy, all devices"] == pytest.approx(
        2 * 450_000 + 2 * 90_000
    )  # 100 W of CPU on each
    assert wide["per unit"] == pytest.approx(900_000 / 9_000)
    assert wide["emissions"] == pytest.approx(50)
    assert wide["start"] == (TROUBLE_S + 1_200) * 1_000


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"model": [LLAMA]}, {"steady"}),
        ({"model": [QWEN]}, {run.run_id for run in SHORT_RUNS}),
        ({"model": [LLAMA, QWEN]}, {"steady", *(run.run_id for run in SHORT_RUNS)}),
        ({"node": [TWIN]}, {run.run_id for run in NODES[TWIN][1]}),
        ({"cluster": ["west.1"]}, RUN_IDS),
        ({"cluster": ["west?1", "westx1"]}, set()),
    ],
)
def test_selected_values_match_literally(hour, chosen, expected):
    assert set(hour(**chosen).table("wattline-runs", "Runs", "run")) == expected


def test_run_detail_shows_total_energy_and_power_of_the_run_only(hour):
    steady, wide, blink = hour(run="steady"), hour(run="wide"), hour(run="blink-0")

    assert steady.legend("wattline-runs", "Energy of the run")["gpu"] == {
        "max": pytest.approx(360_000)
    }
    assert steady.legend("wattline-runs", "Work")["generated_tokens"] == {
        "max": pytest.approx(12_000)
    }
    assert steady.legend("wattline-runs", "Power of the run's GPUs") == {
        f"{ONE} GPU 0": {"mean": 300, "max": 300}
    }
    # one node's series end before the other's
    assert wide.legend("wattline-runs", "Energy of the run")["gpu"] == {
        "max": pytest.approx(900_000)
    }
    assert wide.legend("wattline-runs", "Emissions of the run")["average, actual"] == {
        "max": pytest.approx(50)
    }
    assert blink.legend("wattline-runs", "Energy of the run")["gpu"] == {
        "max": pytest.approx(2_000)
    }
    assert blink.legend("wattline-runs", "Power of the run's GPUs") == {}
    # without a selected run, unattributed energy is not shown
    assert hour(run="").legend("wattline-runs", "Attributed share of the devices") == {}


def test_annotations_mark_first_start_and_last_end_over_nodes(hour):
    view = hour()
    marks = {
        each["name"]: each["expr"] for each in boards()["wattline-runs"]["annotations"]["list"]
    }
    queries = {"title": "marks", "gridPos": {"w": 24}}

    for name, after_s in (("run start", 1_200), ("run end", 1_230 + 900)):
        result = view.answers(
            queries | {"targets": [{"refId": "A", "expr": marks[name], "interval": "60s"}]}
        )
        (moments,) = (set(one.value) for one in result if one.labels["run_id"] == "wide")
        assert (TROUBLE_S + after_s) * 1_000 in moments
        assert min(moments) == (TROUBLE_S + 1_200) * 1_000 or name == "run end"


def test_gpu_table_replaced_driver_is_not_listed(hour):
    gpus = hour().table("wattline-node", "GPUs", "cluster", "node", "GPU")

    drivers = {f"{cluster} {node}": gpu["driver"] for (cluster, node, _), gpu in gpus.items()}
    assert (len(gpus), drivers) == (5, {ONE: "560", OTHER: "570", THIRD: "560"})


def test_sweep_counts_successful_runs_of_the_same_model(hour):
    key = ("wattline-sweep", "model", "power limit")
    # 280 W, 400 W and 560 W at 10 tokens a second, for 90 s
    expected = {("tiny", "300"): 28, ("tiny", "400"): 40, ("big", "300"): 56}

    def column(title, name):
        return {row: result[name] for row, result in hour().table(key[0], title, *key[1:]).items()}

    assert column("Energy per unit of work", "per unit") == pytest.approx(expected)
    assert column("Energy of the phase measure", "energy") == pytest.approx(
        {c: 900 * j for c, j in expected.items()}
    )
    assert column("Duration of the phase measure", "time") == pytest.approx(
        dict.fromkeys(expected, 90)
    )
    assert column("Throughput", "throughput") == pytest.approx(dict.fromkeys(expected, 10))
    least = hour().table("wattline-sweep", "Power limit of least energy", "model")
    assert {model: (row["power limit, W"], row["per unit"]) for model, row in least.items()} == {
        "tiny": ("300", pytest.approx(28)),
        "big": ("300", pytest.approx(56)),
    }
    runs = hour().table("wattline-sweep", "Runs of each power limit", "model", "power limit, W")
    assert {row: result["runs"] for row, result in runs.items()} == dict.fromkeys(expected, 1)


def test_variability_counts_successful_runs_by_power_limit(hour):
    result = hour().table(
        "wattline-variability",
        "Time and energy per unit of work, by GPU",
        "model",
        "power limit, W",
    )

    assert {
        row: (each["time per unit"], each["energy per unit"]) for row, each in result.items()
    } == {
        ("tiny", "300"): (pytest.approx(0.1), pytest.approx(28)),
        ("tiny", "400"): (pytest.approx(0.1), pytest.approx(40)),
        ("big", "300"): (pytest.approx(0.1), pytest.approx(56)),
    }


def test_spread_needs_two_busy_gpus(hour):
    spread = hour().lines("wattline-variability", "Spread of SM clocks")

    # both GPUs of the node are busy from 1,200 s to 1,800 s, with 2.0 and 1.9 GHz: 0.05 / 1.95
    (times,) = spread.values()
    assert {TROUBLE_S + 1_200 < t < TROUBLE_S + 1_860 for t in times} == {True}
    assert list(times.values()) == pytest.approx([0.05 / 1.95] * len(times))


def test_tenant_on_two_nodes_adds_energy_and_tokens(hour):
    on = hour(TROUBLE_S + 2_010)

    power = on.lines("wattline-tenants", "Power by tenant")["pair wide"]
    assert power[TROUBLE_S + 1_800] == pytest.approx(1_000)
    # at the scrape of 1,998.2 s: 500 W for 798.2 s and for 768.2 s; 10 tokens a second
    per_unit = on.legend("wattline-tenants", "Energy per unit by tenant")
    assert per_unit == {
        "pair wide generated_tokens": {"lastNotNull": pytest.approx(500 * 1_566.4 / 7_982)}
    }
    assert set(on.table("wattline-tenants", "Tenants", "tenant")) == {"pair"}
    assert hour().legend("wattline-tenants", "Energy by tenant") == {
        "pair wide": {"max": pytest.approx(900_000)}
    }
    # ended, but its series are still there
    assert hour(TROUBLE_S + 2_200).table("wattline-tenants", "Tenants", "tenant") == {}


def test_clock_event_reason_is_shown_as_share_of_time(hour):
    ratio = hour().legend("wattline-node", "Clock event reasons")

    # half of 360 s of the hour
    assert ratio[f"{OTHER} GPU 0 hw_slowdown"]["mean"] == pytest.approx(180 / 3_600, rel=0.05)
    assert ratio[f"{OTHER} GPU 0 hw_slowdown"]["max"] == pytest.approx(0.5, rel=0.01)
    assert f"{OTHER} GPU 0 sw_thermal_slowdown" not in ratio


def test_lost_gpu_is_counted_and_read_age_is_that_at_scrape(hour):
    answering = hour().legend("wattline-health", "Responding GPUs")

    assert answering[f"{THIRD} up"] == {"lastNotNull": 1, "min": 1}
    assert answering[f"{THIRD} down"] == {"lastNotNull": 1, "min": 0}
    age_s = hour().legend("wattline-health", "Age of the last read")[f"{THIRD} nvml"]
    assert age_s == pytest.approx({"mean": 0.4, "max": 0.4}, abs=0.001)


def test_emissions_by_node_are_energy_times_intensity(hour):
    emissions = hour(cluster=["west.1", "westx1"]).table(
        "wattline-carbon", "Emissions by node", "cluster", "node"
    )

    assert emissions["westx1", TWIN]["emissions"] == pytest.approx(
        (72_000 + 108_000) / 3.6e6 * 200, rel=0.01
    )
    # 120 W of two idle GPUs at 200 g/kWh
    now = hour(cluster=["westx1"]).lines("wattline-carbon", "Emissions now")["gpu"]
    assert now[TROUBLE_S + 2_700] == pytest.approx(24)


def test_emissions_by_hour_are_at_their_hour(server):
    day = View(server, DAY_S + 25 * 3_600 + 1_800, 86_400)

    result = day.lines("wattline-carbon", "Emissions by hour")["gpu"]

    # the provider fails after ten hours and the counter continues under another quality
    expected = {DAY_S + 3_600 * hour: emitted_g for hour, emitted_g in enumerate(EMISSIONS_G)}
    assert len(result) == 25
    # tolerance: one scrape of a minute at up to 70 g/h
    assert result == pytest.approx({t: expected[t] for t in result}, abs=70 / 60)


def fleet_week(server):
    return View(server, WEEK_END_S + 90, 7 * 86_400, screen_px=900)


def test_fleet_week_adds_up(server):
    week, samples, fleet = fleet_week(server), 7 * 288, "wattline-fleet"

    # in five minutes 90 kJ of serving on the average, 22.5 kJ of tuning, 60 kJ of no run
    assert week.figures(fleet, "Energy") == {"gpu": pytest.approx(samples * 172_500)}
    assert week.figures(fleet, "Unattributed GPU energy") == {
        "unattributed": pytest.approx(60 / 172.5)
    }
    # 1/60 kWh at 0.25
    assert week.figures(fleet, "Cost of unattributed GPU energy") == {
        "unattributed": pytest.approx(samples / 240)
    }
    assert week.figures(fleet, "Emissions") == {"average": pytest.approx(samples * 5)}
    assert week.table(fleet, "Top users", "user")["ann"]["energy"] == pytest.approx(
        samples * 112_500
    )
    owned = week.table(fleet, "Energy and cost by namespace", "namespace")["nlp"]
    kwh = samples * 112_500 / 3.6e6
    assert owned == {
        "namespace": "nlp",
        "energy": pytest.approx(kwh),
        "cost": pytest.approx(kwh * 0.25),
    }
    # a third of a token for each joule of serving; tuning made none
    per_token = week.table(fleet, "Energy per generated token", "model")["llama-8b"]
    assert per_token["per token, whole run"] == pytest.approx(3)


def test_fleet_mean_power_of_a_week_uses_all_samples(server):
    power = fleet_week(server).legend("wattline-fleet", "Mean power, attributed and unattributed")

    assert power["serve"]["mean"] == pytest.approx(300, rel=0.005)
    # 150 W in the first half of it
    assert power["tune"]["mean"] == pytest.approx(75, rel=0.005)
    assert power["unattributed"] == {
        "mean": pytest.approx(200, rel=0.005),
        "max": pytest.approx(200),
    }


@pytest.mark.parametrize("uid", sorted(set(boards()) - {"wattline-fleet"}))
def test_panels_show_finite_values_and_distinct_names(hour, uid):
    view = hour(run="wide")

    for each in panels(boards()[uid]):
        if each["type"] in ("timeseries", "stat", "bargauge"):
            assert len(view.lines(uid, each["title"])) == len(view.answers(each))
        else:
            assert all(one.value for one in view.answers(each))
