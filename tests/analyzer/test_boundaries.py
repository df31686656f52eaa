"""Energy, work and money at named boundaries: 300 W for 20 s is 6,000 J, and the rest worked out by hand."""

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.assess.run import assess
from analyzer.model.interval import Interval
from analyzer.model.report import UnitEnergy
from analyzer.model.user_inputs import Given, Price
from analyzer.output.documents import report_document
from analyzer.output.sections.results import latencies, other_results
from analyzer.output.terminal import console, terminal_report
from exporter.contract import metrics as m
from tests.analyzer.node import START_S, Run, scrape, scraped
from tests.analyzer.reported import BOXED, TIMES, frames_of, frames_with, report_of

BOTH = {"generated_tokens": 1_000.0, "prompt_tokens": 3_000.0}


def dram(joules):
    def more(t):
        if t > START_S:
            where = {"run_id": "train-1", "component": "dram", "device": "0"}
            yield m.RUN_ENERGY, where, joules
            yield m.RUN_ENERGY_UNCERTAINTY, where, 1.0

    return more


def assessed(folder, run, told, **options):
    return assess(frames_with(folder, run, **options), told)


def by_name(report):
    return {boundary.name: boundary for boundary in report.boundaries}


def printed(report):
    target = io.StringIO()
    console(target, plain_columns=140).print(terminal_report(report))
    return target.getvalue()


def test_a_run_with_all_components_has_both_boundaries_and_their_halves_add_up(tmp_path):
    report = report_of(tmp_path, Run(cpu_j=900), more=dram(100))

    assert {name: (b.energy.value, b.energy.half) for name, b in by_name(report).items()} == {
        "gpu": (6_000, 10),
        "gpu+cpu+dram": (7_000, 12),
    }


def test_a_component_that_is_not_measured_is_in_no_boundary_and_that_is_said(tmp_path):
    report = report_of(tmp_path, Run(cpu_j=900))

    assert list(by_name(report)) == ["gpu", "gpu+cpu"]
    assert "Not included: DRAM" in printed(report)


def test_a_cpu_that_is_measured_on_one_of_two_nodes_is_in_no_boundary(tmp_path):
    series = scraped(((t, scrape([BOXED], Run(cpu_j=900), t)) for t in TIMES), "a:9847")
    series += scraped(((t, scrape([BOXED], Run(), t)) for t in TIMES), "b:9847")
    for one in series:  # two nodes have cards of their own
        if "uuid" in one.labels:
            one.labels["uuid"] += one.labels["instance"][0]
        if one.labels.get("component") == "gpu":
            one.labels["device"] += one.labels["instance"][0]

    report = assess(frames_of(tmp_path, series))

    assert len(report.instances) == 2
    assert {name: b.energy.value for name, b in by_name(report).items()} == {"gpu": 12_000}


def test_a_cpu_that_was_only_estimated_is_in_no_boundary(tmp_path):
    def more(_):
        yield m.CPU_ENERGY_METHOD, {"package": "0", "method": "model"}, 1.0

    assert list(by_name(report_of(tmp_path, Run(cpu_j=900), more=more))) == ["gpu"]


def test_a_node_that_another_run_used_too_has_the_gpus_boundary_alone(tmp_path):
    other = Run("other", START_S + 5, START_S + 15)

    report = report_of(tmp_path, Run(cpu_j=900), beside=[other])

    assert list(by_name(report)) == ["gpu"]


def test_pue_multiplies_energy_and_work_and_is_said_to_be_given(tmp_path):
    report = assessed(tmp_path, Run(cpu_j=900), Given(pue=1.3), more=dram(100))
    facility = by_name(report)["gpu+cpu+dram × PUE 1.3"]

    assert facility.energy.value == pytest.approx(9_100)  # 7,000 J x 1.3
    assert facility.energy.half == pytest.approx(15.6)  # 12 J x 1.3
    assert facility.work[0].energy_per_unit.value == pytest.approx(9.1)
    assert by_name(report)["gpu+cpu+dram"].energy.value == 7_000
    assert "PUE 1.3 is user-supplied" in printed(report)


def test_generated_and_all_tokens_have_their_own_joules(tmp_path):
    gpu = by_name(report_of(tmp_path, Run(work=BOTH)))["gpu"]

    assert {w.unit: (w.amount, w.energy_per_unit.value, w.per_second) for w in gpu.work} == {
        "generated_tokens": (1_000, 6.0, 50.0),
        "prompt_tokens": (3_000, 2.0, 150.0),
        "total_tokens": (4_000, 1.5, 200.0),
    }
    assert gpu.work[0].energy_per_unit.half == pytest.approx(0.01)
    assert gpu.work[0].units_per_joule.value == pytest.approx(1 / 6)


def test_a_unit_that_the_job_counts_as_total_tokens_is_not_made_up_again(tmp_path):
    work = {**BOTH, "total_tokens": 5_000.0}

    gpu = by_name(report_of(tmp_path, Run(work=work)))["gpu"]

    assert [(w.unit, w.amount) for w in gpu.work if w.unit == "total_tokens"] == [("total_tokens", 5_000)]


def test_flop_are_told_as_gflop(tmp_path):
    report = report_of(tmp_path, Run(work={"flop": 3e12}))

    (work,) = by_name(report)["gpu"].work
    assert (work.unit, work.amount, work.energy_per_unit.value) == ("gflop", 3_000, 2.0)  # 6,000 J / 3,000 GFLOP
    assert "GFLOP" in printed(report)


def test_work_that_was_done_in_a_phase_has_that_phases_energy_at_each_boundary(tmp_path):
    """Measured for 10 of 20 s: 3,000 J of the GPU and 400 J of the CPU; its rate stays that of the wall clock."""
    run = Run(
        cpu_j=900,
        phases={"load": (10, 3_000), "measure": (10, 3_000)},
        phase_uncertainty_j=5,
        phase_work={"measure": {"generated_tokens": 1_000.0}},
    )

    def more(t):
        if t > START_S:
            for name, joules in (("load", 500), ("measure", 400)):
                yield m.RUN_PHASE_ENERGY, {"run_id": "train-1", "phase": name, "component": "cpu"}, joules

    found = by_name(report_of(tmp_path, run, more=more))

    assert {name: b.work[0].energy_per_unit.value for name, b in found.items()} == {"gpu": 3.0, "gpu+cpu": 3.4}
    assert found["gpu"].work[0].phases == ("measure",)
    assert found["gpu"].work[0].per_second == 50
    assert found["gpu"].energy.value == 6_000


def test_a_phase_without_the_cpus_energy_gives_no_energy_per_unit_at_that_boundary(tmp_path):
    run = Run(
        cpu_j=900,
        phases={"load": (10, 3_000), "measure": (10, 3_000)},
        phase_work={"measure": {"generated_tokens": 1_000.0}},
    )

    found = by_name(report_of(tmp_path, run))

    assert [len(found[name].work) for name in ("gpu", "gpu+cpu")] == [1, 0]


def test_a_price_gives_the_cost_of_the_run_and_of_a_million_tokens_at_each_boundary(tmp_path):
    """7,000 J are 7/3,600 kWh; at 0.36 a kWh that is 0.0007. A million tokens of 7 J at that price: 0.7."""
    told = Given(price=Price(0.36, "EUR"), pue=2.0)
    report = assessed(tmp_path, Run(cpu_j=900), told, more=dram(100))
    data = {one["name"]: one for one in report_document(report)["boundaries"]}

    assert data["gpu+cpu+dram"]["cost"] == pytest.approx(0.0007, rel=1e-12)
    assert data["gpu+cpu+dram"]["cost_uncertainty"] == pytest.approx(0.0000012, rel=1e-12)
    assert data["gpu+cpu+dram"]["work"]["generated_tokens"]["cost_per_million_units"] == pytest.approx(0.7)
    assert data["gpu+cpu+dram × PUE 2"]["cost"] == pytest.approx(0.0014, rel=1e-12)
    assert data["gpu"]["energy_kilowatt_hours"] == pytest.approx(6_000 / 3.6e6)
    assert data["gpu"]["currency"] == "EUR"
    assert "EUR per million" in printed(report)
    assert "0.7000" in printed(report)


def test_without_a_price_nothing_costs_anything_and_without_pue_there_is_no_facility(tmp_path):
    report = report_of(tmp_path)

    (only,) = report_document(report)["boundaries"]
    assert (only["name"], only["cost"], only["currency"], only["power_usage_effectiveness"]) == (
        "gpu",
        None,
        None,
        None,
    )
    assert "cost" not in printed(report)


def test_results_latencies_and_other_results_have_own_tables(tmp_path):
    results = {
        "ttft_seconds_mean": 0.2,
        "ttft_seconds_p50": 0.18,
        "ttft_seconds_p99": 0.314,
        "tpot_seconds_p50": 0.01,
        "tpot_seconds_p99": 0.02,
        "loss": 2.5,
        "window_seconds_mean": 4.0,
    }

    text = printed(report_of(tmp_path, Run(results=results)))

    assert [line.split() for line in text.splitlines() if line.startswith(("TTFT", "TPOT"))] == [
        ["TTFT", "200.0", "180.0", "314.0"],
        ["TPOT", "–", "10.00", "20.00"],
    ]
    assert "Results reported by the job" in text
    assert re.search(r"^window_seconds_mean +4\.000 *$", text, re.MULTILINE)
    assert re.search(r"^loss +2\.500 *$", text, re.MULTILINE)
    assert "ttft" not in text


@given(st.dictionaries(st.from_regex(r"[a-c]{1,2}_seconds_(mean|p50|p99|p99_9|sum)", fullmatch=True), st.floats(0, 9)))
def test_results_each_result_is_in_one_table(results):
    tabled = {f"{what}_seconds_{name}" for what, of in latencies(results).items() for name in of}

    assert tabled | other_results(results).keys() == results.keys()
    assert not tabled & other_results(results).keys()


@given(st.floats(1e-6, 1e6), st.floats(0, 0.2))
def test_units_per_joule_have_the_relative_interval_of_joules_per_unit(joules, relative):
    inverse = UnitEnergy("steps", 1, None, Interval(joules, relative * joules)).units_per_joule

    assert inverse.value * joules == pytest.approx(1)
    assert inverse.half == pytest.approx(relative * inverse.value)


def test_the_command_takes_pue_and_price_and_refuses_what_cannot_be(analyzer, steady_history):
    good = analyzer(
        *("report", "--run-id", "train-1", "--source", steady_history, "--format", "json"),
        *("--since", "36500d", "--pue", "1.5", "--price", "0.3", "--currency", "EUR"),
    )
    below = analyzer("report", "--run-id", "train-1", "--source", steady_history, "--pue", "0.9")
    alone = analyzer("report", "--run-id", "train-1", "--source", steady_history, "--currency", "EUR")

    assert good.stderr == ""
    found = {one["name"]: one["energy_joules"] for one in json.loads(good.stdout)["boundaries"]}
    assert found == {"gpu": 12_000, "gpu × PUE 1.5": 18_000}
    assert (below.returncode, below.stdout) == (2, "")
    assert "--price: expected a finite number, not inf" in analyzer("report", "--run-id", "x", "--price", "inf").stderr
    assert (alone.returncode, alone.stderr.count("\n")) == (2, 1)
    assert "--price" in alone.stderr
