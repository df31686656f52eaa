"""Energy, work and cost at system boundaries: 300 W for 20 s is 6,000 J."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analyzer.node import START_S, NodeRun, scrape, series_of_scrapes
from tests.analyzer.run_reports import (
    RUN_GPU,
    SCRAPE_TIMES,
    load_frames,
    run_frames,
    run_report,
    terminal_text,
    without_half_width,
)
from wattline.contract import metrics as m
from wattline.figures import Figure
from wattline_analyzer.core.run_report import BoundaryUnitEnergy, Price, UserInputs
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.document import report_document
from wattline_analyzer.report.sections.boundaries import boundary_table

BOTH = {"generated_tokens": 1_000.0, "prompt_tokens": 3_000.0}


def dram(joules):
    def extra(t):
        if t > START_S:
            where = {"run_id": "train-1", "component": "dram", "device": "0"}
            yield m.RUN_ENERGY, where, joules
            yield m.RUN_ENERGY_UNCERTAINTY, where, 1.0

    return extra


def assessed_report(folder, run, user_inputs, **options):
    return assess(run_frames(folder, run, **options), user_inputs)


def boundaries_by_name(report):
    return {boundary.name: boundary for boundary in report.boundaries}


def test_boundaries_all_components_add_energy_and_half_widths(tmp_path):
    """Half-widths of 10, 1 and 1 J: 12 J."""
    report = run_report(tmp_path, NodeRun(cpu_j=900), extra=dram(100))

    assert {
        name: (b.energy.value, b.energy.half_width)
        for name, b in boundaries_by_name(report).items()
    } == {
        "gpu": (6_000, 10),
        "gpu+cpu+dram": (7_000, 12),
    }


def test_boundaries_with_unknown_half_width_of_one_component_have_none(tmp_path):
    """6,000 ± 10 J of the GPU, 900 J of the CPU."""
    report = assess(without_half_width(run_frames(tmp_path, NodeRun(cpu_j=900)), "cpu"))

    table = boundary_table(report)
    assert [[cell.text for cell in row][:2] for row in table.rows] == [
        ["gpu", "6,000 ± 10"],
        ["gpu+cpu", "6,900"],
    ]
    assert [row[1].half for row in table.rows] == [10.0, None]
    document = report_document(report)["boundaries"]
    assert [one["energy_uncertainty_joules"] for one in document] == [10.0, None]


def test_boundaries_missing_component_is_excluded_and_named(tmp_path):
    report = run_report(tmp_path, NodeRun(cpu_j=900))

    assert list(boundaries_by_name(report)) == ["gpu", "gpu+cpu"]
    assert "Not included: DRAM" in terminal_text(report)


def test_boundaries_cpu_of_one_of_two_nodes_is_excluded(tmp_path):
    series = series_of_scrapes(
        ((t, scrape([RUN_GPU], NodeRun(cpu_j=900), t)) for t in SCRAPE_TIMES), "a:9847"
    )
    series += series_of_scrapes(
        ((t, scrape([RUN_GPU], NodeRun(), t)) for t in SCRAPE_TIMES), "b:9847"
    )
    for entry in series:  # two nodes with separate GPUs
        if "uuid" in entry.labels:
            entry.labels["uuid"] += entry.labels["instance"][0]
        if entry.labels.get("component") == "gpu":
            entry.labels["device"] += entry.labels["instance"][0]

    report = assess(load_frames(tmp_path, series))

    assert len(report.instances) == 2
    assert {name: b.energy.value for name, b in boundaries_by_name(report).items()} == {
        "gpu": 12_000
    }


def test_boundaries_estimated_cpu_is_excluded(tmp_path):
    def extra(_):
        yield m.CPU_ENERGY_METHOD, {"package": "0", "method": "model"}, 1.0

    assert list(boundaries_by_name(run_report(tmp_path, NodeRun(cpu_j=900), extra=extra))) == [
        "gpu"
    ]


def test_boundaries_shared_node_has_gpu_boundary_only(tmp_path):
    other = NodeRun("other", START_S + 5, START_S + 15)

    report = run_report(tmp_path, NodeRun(cpu_j=900), other_runs=[other])

    assert list(boundaries_by_name(report)) == ["gpu"]


def test_boundaries_pue_multiplies_energy_and_energy_per_unit(tmp_path):
    report = assessed_report(tmp_path, NodeRun(cpu_j=900), UserInputs(pue=1.3), extra=dram(100))
    facility = boundaries_by_name(report)["gpu+cpu+dram × PUE 1.3"]

    assert facility.energy.value == pytest.approx(9_100)  # 7,000 J x 1.3
    assert facility.energy.half_width == pytest.approx(15.6)  # 12 J x 1.3
    assert facility.work[0].energy_per_unit.value == pytest.approx(9.1)
    assert boundaries_by_name(report)["gpu+cpu+dram"].energy.value == 7_000
    assert "PUE 1.3 is user-supplied" in terminal_text(report)


def test_boundaries_token_units_have_separate_energy_per_unit(tmp_path):
    gpu = boundaries_by_name(run_report(tmp_path, NodeRun(work=BOTH)))["gpu"]

    assert {w.unit: (w.amount, w.energy_per_unit.value, w.per_second) for w in gpu.work} == {
        "generated_tokens": (1_000, 6.0, 50.0),
        "prompt_tokens": (3_000, 2.0, 150.0),
        "total_tokens": (4_000, 1.5, 200.0),
    }
    assert gpu.work[0].energy_per_unit.half_width == pytest.approx(0.01)
    assert gpu.work[0].units_per_joule.value == pytest.approx(1 / 6)


def test_boundaries_total_tokens_of_job_are_not_computed_again(tmp_path):
    work = {**BOTH, "total_tokens": 5_000.0}

    gpu = boundaries_by_name(run_report(tmp_path, NodeRun(work=work)))["gpu"]

    assert [(w.unit, w.amount) for w in gpu.work if w.unit == "total_tokens"] == [
        ("total_tokens", 5_000)
    ]


def test_boundaries_flop_are_converted_to_gflop(tmp_path):
    report = run_report(tmp_path, NodeRun(work={"flop": 3e12}))

    (work,) = boundaries_by_name(report)["gpu"].work
    assert (work.unit, work.amount, work.energy_per_unit.value) == (
        "gflop",
        3_000,
        2.0,
    )  # 6,000 J / 3,000 GFLOP
    assert "GFLOP" in terminal_text(report)


def test_boundaries_phase_work_has_energy_of_phase(tmp_path):
    """10 of 20 s in the phase: 3,000 J of the GPU and 400 J of the CPU; the rate covers the whole
    run.
    """
    run = NodeRun(
        cpu_j=900,
        phases={"load": (10, 3_000), "measure": (10, 3_000)},
        phase_uncertainty_j=5,
        phase_work={"measure": {"generated_tokens": 1_000.0}},
    )

    def extra(t):
        if t > START_S:
            for name, joules in (("load", 500), ("measure", 400)):
                yield (
                    m.RUN_PHASE_ENERGY,
                    {"run_id": "train-1", "phase": name, "component": "cpu"},
                    joules,
                )

    boundaries = boundaries_by_name(run_report(tmp_path, run, extra=extra))

    assert {name: b.work[0].energy_per_unit.value for name, b in boundaries.items()} == {
        "gpu": 3.0,
        "gpu+cpu": 3.4,
    }
    assert boundaries["gpu"].work[0].phases == ("measure",)
    assert boundaries["gpu"].work[0].per_second == 50
    assert boundaries["gpu"].energy.value == 6_000


def test_boundaries_phase_without_cpu_energy_has_no_energy_per_unit(tmp_path):
    run = NodeRun(
        cpu_j=900,
        phases={"load": (10, 3_000), "measure": (10, 3_000)},
        phase_work={"measure": {"generated_tokens": 1_000.0}},
    )

    boundaries = boundaries_by_name(run_report(tmp_path, run))

    assert [len(boundaries[name].work) for name in ("gpu", "gpu+cpu")] == [1, 0]


def test_boundaries_price_gives_cost_of_run_and_million_tokens(tmp_path):
    """7,000 J are 7/3,600 kWh: 0.0007 at 0.36 per kWh. A million tokens of 7 J at that price:
    0.7. The half-width is 12 J.
    """
    user_inputs = UserInputs(price=Price(0.36, "EUR"), pue=2.0)
    report = assessed_report(tmp_path, NodeRun(cpu_j=900), user_inputs, extra=dram(100))
    data = {entry["name"]: entry for entry in report_document(report)["boundaries"]}

    assert data["gpu+cpu+dram"]["cost"] == pytest.approx(0.0007, rel=1e-12)
    assert data["gpu+cpu+dram"]["cost_uncertainty"] == pytest.approx(1.2e-6, rel=1e-8)
    assert data["gpu+cpu+dram"]["work"]["generated_tokens"][
        "cost_per_million_units"
    ] == pytest.approx(0.7)
    assert data["gpu+cpu+dram × PUE 2"]["cost"] == pytest.approx(0.0014, rel=1e-12)
    assert data["gpu"]["energy_kilowatt_hours"] == pytest.approx(6_000 / 3.6e6)
    assert data["gpu"]["currency"] == "EUR"
    assert "EUR per million" in terminal_text(report)
    assert "0.7000" in terminal_text(report)


def test_boundaries_without_price_and_pue_have_no_cost(tmp_path):
    report = run_report(tmp_path)

    (boundary,) = report_document(report)["boundaries"]
    assert (
        boundary["name"],
        boundary["cost"],
        boundary["currency"],
        boundary["power_usage_effectiveness"],
    ) == (
        "gpu",
        None,
        None,
        None,
    )
    assert "cost" not in terminal_text(report)


@given(st.floats(1e-6, 1e6), st.floats(0, 0.2))
def test_units_per_joule_has_same_relative_half_width(joules, relative):
    inverse = BoundaryUnitEnergy(
        "steps", 1, None, Figure(joules, relative * joules)
    ).units_per_joule

    assert inverse.value * joules == pytest.approx(1)
    assert inverse.half_width == pytest.approx(relative * inverse.value)
