"""Energy, emissions and work of a fleet, from a real Prometheus and VictoriaMetrics."""

import pytest

from tests.analyzer.small_fleet import (
    BEGIN_S,
    END_S,
    FINAL_REQUESTS,
    LATE_S,
    NODES,
    RUN_W,
    SCRAPE_S,
    SCRAPED_TWICE,
    fetch_small_fleet,
    groups_by_keys,
)
from wattline.contract import metrics as m
from wattline_analyzer.core.samples import clean
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_analyzer.usage.fleet_output import fleet_output


@pytest.fixture(params=["prometheus", "victoria-metrics"])
def address(request, fleet_addresses):
    return fleet_addresses[request.param]


def line_points(watts, seconds, nodes=1):
    """Energy limits from scrapes next to both edges; Prometheus 3 leaves out a sample exactly at
    the start.
    """
    return pytest.approx(watts * seconds, abs=1.01 * watts * SCRAPE_S * nodes)


def test_fleet_energy_by_model_and_user_covers_the_window(address):
    result = {
        keys: group.energy_j
        for keys, group in groups_by_keys(fetch_small_fleet(address, "model,user")).items()
    }

    assert result == {
        ("m1", "u1"): line_points(RUN_W + 300, 4_200),
        ("m2", "u1"): RUN_W * 1_800 + 300 * 1_800,
        ("m2", "u2"): 2 * RUN_W * 900,
        ("m2", "u3"): RUN_W * (500 + 500 / 2),
        ("m2", "u4"): RUN_W * (500 + 500 / 2),
        ("m3", "(none)"): RUN_W * 5,
    }


@pytest.mark.parametrize("rules", [False, True])
def test_fleet_run_between_two_scrapes_has_all_its_energy(address, rules):
    assert groups_by_keys(fetch_small_fleet(address, "model", rules=rules))["m3",].joules == {
        "gpu": 1_500,
        "cpu": 600,
        "dram": 100,
    }


@pytest.mark.parametrize("rules", [False, True])
def test_fleet_runs_and_unattributed_add_up_to_devices(address, rules):
    result = fetch_small_fleet(address, "model,user,namespace", rules=rules)

    assert result.excess_ratio == pytest.approx(0, abs=5e-4)
    assert result.unattributed_j > 0.3 * result.device_j
    assert [group.keys for group in result.unattributed] == [("(no run)",) * 3]


def test_fleet_device_energy_matches_raw_samples(address):
    result = fetch_small_fleet(address, "node,gpu_model")
    joules = {}
    for group in (*result.groups, *result.unattributed):
        joules[group.keys[0]] = joules.get(group.keys[0], 0) + group.joules.get("gpu", 0)
    raw = PrometheusSource(address)
    frame = raw.fetch([m.GPU_ENERGY], {}, BEGIN_S - 60, END_S)
    raw.close()

    for node in NODES:
        expected = 0
        for _, rows in frame.take(frame.where("instance", [node.instance])).groups("uuid"):
            counter = clean(rows.t, rows.value)
            before, steps = (
                counter.value[chosen] for chosen in (counter.t <= BEGIN_S, counter.t > BEGIN_S)
            )
            base = before[-1] if len(before) else steps[0]
            expected += sum(
                max(b - a, b if b < a else 0)
                for a, b in zip([base, *steps[:-1]], steps, strict=True)
            )
        assert joules[node.instance] == pytest.approx(expected, rel=0.005), node.instance


def test_fleet_nodes_that_come_and_go_count_while_present(address):
    result = fetch_small_fleet(address, "node")
    joules = {group.keys[0]: group.joules for group in result.unattributed}

    assert joules["gone:9847"] == {
        "gpu": line_points(60, 3_000),
        "cpu": line_points(120, 3_000),
        "dram": line_points(20, 3_000),
    }
    assert joules["new:9847"]["gpu"] == line_points(2 * 60, 4_200 - 1_500 / 2)
    assert joules["fresh:9847"]["gpu"] == line_points(60, 7_200)


def test_fleet_new_node_parts_add_up_within_minutes(fleet_addresses):
    """From Prometheus: 33 scrapes are 32 x 15 s of 60 W, without extrapolation before the first or
    after the last.
    """
    result = fetch_small_fleet(
        fleet_addresses["prometheus"], "node", start_s=BEGIN_S + 2_900, end_s=BEGIN_S + 3_500
    )
    (joules,) = (group.joules for group in result.unattributed if group.keys == ("new:9847",))

    assert joules == {"gpu": 2 * 60 * 32 * 15, "cpu": 120 * 32 * 15, "dram": 20 * 32 * 15}
    assert result.excess_ratio == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("rules", [False, True])
def test_fleet_node_scraped_twice_counts_once(address, rules):
    result = fetch_small_fleet(address, "node", rules=rules)
    (joules,) = (
        group.energy_j for group in result.unattributed if group.keys == (SCRAPED_TWICE.instance,)
    )

    assert joules == pytest.approx(
        (60 + 120 + 20) * (SCRAPED_TWICE.down_s - result.means.start_s), rel=0.01
    )


def test_fleet_shares_of_runs_before_first_scrape_add_up_to_whole(address):
    """All runs have their energy of the window; the counters of devices begin later."""
    result = fetch_small_fleet(address, "model", start_s=LATE_S - 300, end_s=LATE_S + 300)

    energies_j = {keys[0]: group.energy_j for keys, group in groups_by_keys(result).items()}
    assert energies_j == {"brief": RUN_W * 100, "early": RUN_W * 120, "over": RUN_W * 210}
    assert result.excess_ratio > 0.5
    shares = [result.share(group) for group in (*result.groups, *result.unattributed)]
    assert sum(shares) == pytest.approx(1, abs=1e-9)
    assert result.share(result.groups[0]) == pytest.approx(RUN_W * 210 / result.whole_j)
    notes = [part for part in fleet_output(result, 50).parts if isinstance(part, str)]
    assert any("shares are of the sum of all parts, and are upper limits" in note for note in notes)


def test_fleet_run_that_ended_before_window_has_no_energy_in_it(address):
    """The run is first scraped in the window, since its node was not scraped before."""
    result = fetch_small_fleet(address, "model", start_s=LATE_S - 145, end_s=LATE_S + 300)

    assert {keys[0] for keys in groups_by_keys(result)} == {"early", "over"}


def test_fleet_groups_by_gpu_model(address):
    result = fetch_small_fleet(address, "gpu_model")

    assert groups_by_keys(result)["NVIDIA A100",].joules["gpu"] == pytest.approx(
        600 * 1_800 + 300 * 5 + 300 * 900
    )
    assert {group.keys[0] for group in result.unattributed} == {
        "NVIDIA H200",
        "NVIDIA A100",
        "(no GPU)",
    }
    assert result.excess_ratio == pytest.approx(0, abs=5e-4)


@pytest.mark.parametrize("rules", [False, True])
def test_fleet_run_without_namespace_takes_that_of_the_pod(address, rules):
    result = {
        keys[0]: group.energy_j
        for keys, group in groups_by_keys(
            fetch_small_fleet(address, "namespace", rules=rules)
        ).items()
    }

    assert result["blue"] == 740 * 1_800
    assert result["green"] == RUN_W * 5 + RUN_W * 900
    assert result["own"] == RUN_W * (500 + 500 / 2)
    assert result["(none)"] >= RUN_W * 900


@pytest.mark.parametrize("rules", [False, True])
def test_fleet_work_is_divided_by_energy_of_its_runs(address, rules):
    result = groups_by_keys(fetch_small_fleet(address, "model", rules=rules))["m2",]

    assert {unit: work.amount for unit, work in result.work.items()} == {
        "generated_tokens": 100 * 1_800 + 50 * 900,
        "prompt_tokens": 300 * 1_800,
    }
    generated_j = 2 * 300 * 1_800 + 2 * 300 * 900  # of the GPUs alone, without CPU and DRAM
    assert result.work["generated_tokens"].joules_per_unit == pytest.approx(generated_j / 225_000)
    assert result.work["prompt_tokens"].joules_per_unit == pytest.approx(2 * 300 * 1_800 / 540_000)
    assert result.runs == 4


@pytest.mark.parametrize("rules", [False, True])
def test_fleet_work_reported_at_the_end_counts_in_the_window(address, rules):
    """The run lasts from an hour before the window to 4,200 s."""
    result = groups_by_keys(fetch_small_fleet(address, "user", rules=rules))["u1",]

    assert result.work["requests"].amount == FINAL_REQUESTS


@pytest.mark.parametrize("rules", [False, True])
def test_fleet_emissions_are_the_attributed_part(address, rules):
    result = fetch_small_fleet(address, "model", rules=rules)

    grams = groups_by_keys(result)["m1",].grams["average", "actual"]
    assert grams == pytest.approx(
        600 * (BEGIN_S + 4_200 - result.means.start_s) * 200 / 3.6e6, rel=0.01
    )
    assert groups_by_keys(result)["m3",].grams == {}
    start_s, end_s = result.means.start_s, result.means.end_s
    joules = (
        (2 * 60 + 120 + 20) * (end_s - start_s) + 2 * 240 * (BEGIN_S + 4_200 - start_s) + 240 * 900
    )
    assert result.device_grams["average", "actual"] == pytest.approx(joules * 200 / 3.6e6, rel=0.01)


@pytest.mark.parametrize("rules", [False, True])
def test_fleet_emissions_of_ended_run_fit_its_energy(address, rules):
    """The run ended at 5,400 s; the last scrape before was 11.8 s earlier, and its emissions follow
    4 s later.
    """
    result = groups_by_keys(
        fetch_small_fleet(address, "node,model", start_s=BEGIN_S + 5_402, rules=rules)
    )["a:9847", "m2"]

    joules = result.joules["gpu"]
    assert rules or joules == pytest.approx(300 * 11.8, abs=1)
    assert result.grams["average", "actual"] == pytest.approx(joules * 200 / 3.6e6, rel=1e-3)


def test_fleet_given_intensity_replaces_recorded_emissions(address):
    result = groups_by_keys(fetch_small_fleet(address, "model", carbon=100.0))["m3",]

    assert result.grams == {("given", "static"): pytest.approx(RUN_W * 5 / 3.6e6 * 100)}


def test_fleet_idle_energy_is_that_of_gpus_without_runs(address):
    idle_s = (7_200 - 4_200 - 900) + (7_200 - 4_200)  # a
    idle_s += (7_200 - 1_800 - 5 - 900) + (7_200 - 1_800)  # b
    idle_s += 3_000 + (4_200 - 1_500) + 4_200 + 7_200  # gone, new, fresh

    assert fetch_small_fleet(address, "user").idle_j == pytest.approx(60 * idle_s, rel=0.005)
    assert fetch_small_fleet(address, "user", policy="idle_apart").idle_j == pytest.approx(
        60 * idle_s, rel=0.005
    )
