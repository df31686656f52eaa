"""Runs, devices and work in `analyzer usage`, from two servers and a history file."""

import pytest

from tests.analyzer.small_fleet import (
    BEGIN_S,
    END_S,
    FINAL_REQUESTS,
    LATE_S,
    RUN_W,
    SCRAPE_S,
    SCRAPED_TWICE,
)
from tests.analyzer.usage.usage_rows import by_key

pytestmark = pytest.mark.parametrize("source", ["prometheus", "victoria-metrics", "history"])


def near(watts, seconds):
    """Energy limits from scrapes next to both edges."""
    return pytest.approx(watts * seconds, abs=1.01 * watts * SCRAPE_S)


def test_usage_energy_by_model_and_user_covers_the_window(usage, source):
    rows = {
        (row["model"], row["user"]): row["energy_joules"]
        for row in usage(source, "model,user")["groups"]
    }

    assert rows == {
        ("m1", "u1"): near(RUN_W + 300, 4_200),
        ("m2", "u1"): (RUN_W + 300) * 1_800,
        ("m2", "u2"): 2 * RUN_W * 900,
        ("m2", "u3"): RUN_W * (500 + 500 / 2),
        ("m2", "u4"): RUN_W * (500 + 500 / 2),
        ("m3", "(none)"): RUN_W * 5,
    }


def test_usage_run_between_two_scrapes_has_all_its_energy(usage, source):
    row = by_key(usage(source, "model"), "model")["m3"]

    parts = [row[f"{name}_energy_joules"] for name in ("gpu", "cpu", "dram")]
    assert parts == [300 * 5, 120 * 5, 20 * 5]


def test_usage_nodes_that_come_and_go_count_while_present(usage, source):
    rows = {
        row["node"].split()[0]: row for row in usage(source, "model,node")["unattributed"]
    } or {}
    joules = {row["node"]: row for row in rows.values()}

    assert joules["gone:9847"]["gpu_energy_joules"] == near(60, 3_000)
    assert joules["gone:9847"]["cpu_energy_joules"] == near(120, 3_000)
    assert joules["gone:9847"]["dram_energy_joules"] == near(20, 3_000)
    assert joules["new:9847"]["gpu_energy_joules"] == near(2 * 60, 4_200 - 1_500 / 2)
    assert joules["fresh:9847"]["gpu_energy_joules"] == near(60, 7_200)


def test_usage_new_node_counts_from_its_first_scrape(usage, source):
    """33 scrapes are 32 x 15 s of 60 W for each of two GPUs, 120 W and 20 W."""
    document = usage(source, "model,node", since=BEGIN_S + 2_900, until=BEGIN_S + 3_500)
    (row,) = (one for one in document["unattributed"] if one["node"] == "new:9847")

    parts = [row[f"{name}_energy_joules"] for name in ("gpu", "cpu", "dram")]
    assert parts == [2 * 60 * 32 * 15, 120 * 32 * 15, 20 * 32 * 15]
    assert row["energy_state"] == "partial"
    assert row["energy_reason"] == "new:9847 counts from 10:50:11"
    assert document["remainder_energy_joules_by_node"]["new:9847"] == pytest.approx(0, abs=1e-6)


def test_usage_node_scraped_twice_counts_once(usage, source):
    document = usage(source, "model,node")
    (row,) = (one for one in document["unattributed"] if one["node"] == SCRAPED_TWICE.instance)

    assert row["energy_joules"] == pytest.approx(
        (60 + 120 + 20) * (SCRAPED_TWICE.down_s - BEGIN_S), rel=0.01
    )


def test_usage_runs_before_the_first_scrape_count_from_it_on(usage, source):
    """The run `brief` ended before the first scrape, `early` before and `over` after it."""
    document = usage(source, "model", since=LATE_S - 300, until=LATE_S + 300)
    energies_j = {row["model"]: row["energy_joules"] for row in document["groups"]}

    first_s = document["nodes_count_from_unix_seconds"]["late:9847"]
    assert 0 <= first_s - LATE_S < SCRAPE_S
    # the run `over` ended 200 s after LATE_S
    over_j = near(RUN_W, 200 - (first_s - LATE_S))
    assert energies_j == {"brief": None, "early": None, "over": over_j}
    states = {row["model"]: row["energy_state"] for row in document["groups"]}
    assert states == {"brief": "unknown", "early": "unknown", "over": "partial"}
    assert document["remainder"]["energy_joules"] == pytest.approx(0, abs=2)


def test_usage_groups_by_gpu_model(usage, source):
    document = usage(source, "gpu_model")

    a100 = by_key(document, "gpu_model")["NVIDIA A100"]
    assert a100["gpu_energy_joules"] == pytest.approx(600 * 1_800 + 300 * 5 + 300 * 900)
    assert {row["gpu_model"] for row in document["unattributed"]} == {
        "NVIDIA H200 (unattributed)",
        "NVIDIA A100 (unattributed)",
        "(unattributed)",
    }
    assert abs(document["remainder"]["energy_joules"]) < 5e-4 * document["total"]["energy_joules"]


def test_usage_run_without_namespace_takes_that_of_the_pod(usage, source):
    rows = by_key(usage(source, "namespace"), "namespace")

    assert rows["blue"]["energy_joules"] == (RUN_W + 300) * 1_800
    assert rows["green"]["energy_joules"] == RUN_W * 5 + RUN_W * 900
    assert rows["own"]["energy_joules"] == RUN_W * (500 + 500 / 2)
    assert rows["(none)"]["energy_joules"] >= RUN_W * 900


def test_usage_work_is_divided_by_energy_of_its_runs(usage, source):
    row = by_key(usage(source, "model"), "model")["m2"]

    amounts = {unit: one["amount"] for unit, one in row["work"].items()}
    assert amounts == {
        "generated_tokens": 100 * 1_800 + 50 * 900,
        "prompt_tokens": 300 * 1_800,
    }
    generated_j = 2 * 300 * 1_800 + 2 * 300 * 900  # of the GPUs alone, without CPU and DRAM
    each = {unit: one["energy_per_unit_joules"] for unit, one in row["work"].items()}
    assert each["generated_tokens"] == pytest.approx(generated_j / 225_000)
    assert each["prompt_tokens"] == pytest.approx(2 * 300 * 1_800 / 540_000)
    assert row["runs"] == 4


def test_usage_work_on_one_of_two_nodes_has_the_energy_of_both(usage, source):
    """The run of u2 counts its 50 tokens/s on node a, and takes 300 W on each of two nodes."""
    rows = {
        row["node"]: row["work"]
        for row in usage(source, "user,node")["groups"]
        if row["user"] == "u2"
    }

    assert rows["a:9847"]["generated_tokens"]["energy_per_unit_joules"] == pytest.approx(600 / 50)
    assert rows["b:9847"] == {}


def test_usage_work_reported_at_the_end_counts_in_the_window(usage, source):
    """The run lasts from an hour before the window to 4,200 s."""
    work = by_key(usage(source, "user"), "user")["u1"]["work"]

    assert work["requests"]["amount"] == FINAL_REQUESTS


def test_usage_emissions_are_the_attributed_part(usage, source):
    document = usage(source, "model")
    rows = by_key(document, "model")

    grams = rows["m1"]["emissions_grams"]["average"]
    assert grams == pytest.approx(600 * 4_200 * 200 / 3.6e6, rel=0.01)
    assert rows["m3"]["emissions_grams"] == {}
    joules = (2 * 60 + 120 + 20) * 7_200 + 2 * 240 * 4_200 + 240 * 900
    total_g = document["total"]["emissions_grams"]["average"]
    assert total_g == pytest.approx(joules * 200 / 3.6e6, rel=0.01)


def test_usage_emissions_of_ended_run_fit_its_energy(usage, source):
    """The run ended at 5,400 s; the last scrape before was 11.8 s earlier, and its emissions follow
    4 s later.
    """
    document = usage(source, "node,model", since=BEGIN_S + 5_402)
    (row,) = (one for one in document["groups"] if (one["node"], one["model"]) == ("a:9847", "m2"))

    joules = row["gpu_energy_joules"]
    assert joules == pytest.approx(300 * 11.8, abs=1)
    assert row["emissions_grams"]["average"] == pytest.approx(joules * 200 / 3.6e6, rel=1e-3)


@pytest.mark.parametrize("policy", ["idle_shared", "idle_apart"])
def test_usage_idle_energy_is_that_of_gpus_without_runs(usage, source, policy):
    idle_s = (7_200 - 4_200 - 900) + (7_200 - 4_200)  # a
    idle_s += (7_200 - 1_800 - 5 - 900) + (7_200 - 1_800)  # b
    idle_s += 3_000 + (4_200 - 1_500) + 4_200 + 7_200  # gone, new, fresh

    document = usage(source, "user", "--policy", policy)

    assert document["idle_gpu_energy_joules"] == pytest.approx(60 * idle_s, rel=0.005)


def test_usage_share_is_of_the_energy_of_the_devices(usage, source):
    document = usage(source, "user")

    u2 = by_key(document, "user")["u2"]
    total_j = document["total"]["energy_joules"]
    assert u2["energy_share_ratio"] == pytest.approx(2 * RUN_W * 900 / total_j)
    assert document["total"]["energy_share_ratio"] == 1.0


def test_usage_total_is_independent_of_the_keys(usage, source):
    keys = ("user", "model", "node", "gpu_model", "namespace", "workload,kind")
    totals = [usage(source, by)["total"]["energy_joules"] for by in keys]

    assert totals == [totals[0]] * len(totals)
    assert END_S - BEGIN_S == 7_200
