"""Emissions and software carbon intensity of 6,000 J (GPU) and 900 J (CPU) in 20 s for 1,000
tokens.
"""

from dataclasses import replace

import pytest

from tests.analyzer.node import START_S, NodeRun
from tests.analyzer.report.test_assess_attribution import share
from tests.analyzer.run_reports import (
    finding_codes,
    run_frames,
    run_report,
    terminal_text,
    without_half_width,
)
from wattline.contract import metrics as m
from wattline.figures import Figure
from wattline_analyzer.carbon.emissions import software_carbon_intensity
from wattline_analyzer.core.emissions import Emission, Hardware, PastIntensities, PastSlot
from wattline_analyzer.core.run_report import Boundary, BoundaryUnitEnergy, RunEnergies, UserInputs
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.document import report_document
from wattline_analyzer.report.sections.report import summary_sentences

JOULES = 3.6e6
# 1,576.8 kg over 4 years of 365 days, half of it reserved, for 20 s: 1,576,800 g x 20 / 126,144,000
# / 2 = 0.125 g
BOARD = Hardware(1_576.8, 4, 0.5)


def sci_report(folder, run=None, *, extra=lambda _: (), **bounded):
    return assess(
        run_frames(folder, run or NodeRun(cpu_j=900), extra=extra),
        UserInputs(hardware=BOARD, **bounded),
    )


def sci_by_boundary(report):
    return {(sci.boundary, sci.basis): sci for sci in report.sci}


def test_sci_operational_and_embodied_add_per_run_and_unit(tmp_path):
    by_boundary = sci_by_boundary(sci_report(tmp_path, grams_per_kwh=360.0))

    gpu = by_boundary["gpu", "average"]
    assert gpu.operational.value == pytest.approx(0.6)  # 6,000 J at 360 g/kWh
    assert gpu.embodied_g == pytest.approx(0.125, rel=1e-12)
    assert gpu.whole.value == pytest.approx(0.725)
    assert gpu.whole.half_width == pytest.approx(0.001)  # of the energy alone: 10 J
    assert gpu.per_unit["generated_tokens"].value == pytest.approx(0.000725)
    assert by_boundary["gpu+cpu", "average"].operational.value == pytest.approx(0.69)


def test_sci_per_unit_includes_uncertainty_of_amount(tmp_path):
    """0.725 ± 0.001 g for 1,000 tokens, which may be 900 to 1,100: 0.000725 x (1,000 / 900 - 1)
    more.
    """
    gpu = sci_by_boundary(sci_report(tmp_path, grams_per_kwh=360.0))["gpu", "average"]
    bounded = replace(gpu, limits={"generated_tokens": (900.0, 1_100.0)})
    unbounded = replace(gpu, limits={"generated_tokens": (0.0, 1_100.0)})

    assert bounded.per_unit["generated_tokens"].half_width == pytest.approx(0.000001 + 0.000725 / 9)
    assert bounded.whole == gpu.whole
    assert unbounded.per_unit["generated_tokens"].half_width is None


@pytest.mark.parametrize(
    ("mass_half", "whole_half", "each_half", "expected"),
    [
        (1.0, 6.0, 0.12, 0.02),
        (None, 6.0, 0.12, None),
        (1.0, None, 0.12, None),
        (1.0, 6.0, None, None),
    ],
)
def test_sci_per_unit_is_unknown_where_a_half_width_is(mass_half, whole_half, each_half, expected):
    """10 g ± 10 % for 100 J ± 6 %: 8 % of the intensity, and 6 % of the 2 J of a unit: 10 % of
    its 0.2 g.
    """
    work = BoundaryUnitEnergy("steps", 50.0, None, Figure(2.0, each_half))
    boundary = Boundary(("gpu",), Figure(100.0, whole_half), (work,))
    emission = Emission("gpu", "average", "actual", "ledger", Figure(10.0, mass_half))
    energies = RunEnergies((), {"gpu": boundary.energy}, (), None, is_sampled=False)

    (sci,) = software_carbon_intensity(energies, [boundary], [emission], [], 0.0)

    assert sci.units[0].operational.value == pytest.approx(0.2)
    assert sci.units[0].operational.half_width == (expected and pytest.approx(expected))


def test_sci_pue_multiplies_operational_part_only(tmp_path):
    by_boundary = sci_by_boundary(sci_report(tmp_path, grams_per_kwh=360.0, pue=1.5))

    assert by_boundary["gpu × PUE 1.5", "average"].operational.value == pytest.approx(0.9)
    assert (
        by_boundary["gpu × PUE 1.5", "average"].embodied_g
        == by_boundary["gpu", "average"].embodied_g
    )
    assert by_boundary["gpu", "average"].operational.value == pytest.approx(0.6)


def test_sci_prefers_restated_then_ledger_then_given_intensity(tmp_path):
    slot_s = START_S // 1_800 * 1_800
    past = PastIntensities(
        "gb", "GB", "average", (PastSlot(slot_s, slot_s + 1_800, 720.0, "actual"),)
    )
    run = NodeRun(emissions_g=0.5)
    (tmp_path / "a").mkdir()

    ledger = sci_by_boundary(sci_report(tmp_path, run, grams_per_kwh=360.0))["gpu", "average"]
    later = sci_by_boundary(sci_report(tmp_path / "a", run, grams_per_kwh=360.0, past=(past,)))[
        "gpu", "average"
    ]

    assert (ledger.origin, ledger.operational.value) == ("ledger", 0.5)
    assert (later.origin, later.operational.value) == ("restated", pytest.approx(1.2))


def test_sci_incomplete_restatement_is_not_used(tmp_path):
    """360 g/kWh for the first 10 of 20 s: 0.3 g of half the energy, compared with 0.5 g of the
    whole.
    """
    past = PastIntensities(
        "slots.csv", "", "average", (PastSlot(START_S - 60, START_S + 10, 360.0, "actual"),)
    )
    (tmp_path / "a").mkdir()

    (sci,) = sci_report(tmp_path, NodeRun(emissions_g=0.5), past=(past,)).sci
    without = sci_report(tmp_path / "a", NodeRun(), past=(past,))

    assert (sci.origin, sci.operational.value) == ("ledger", 0.5)
    assert without.sci == ()
    assert {"restated_missing", "no_sci"} <= set(finding_codes(without))


def test_sci_average_and_marginal_are_separate(tmp_path):
    def marginal(t):
        if t > START_S:
            labels = {
                "run_id": "train-1",
                "component": "gpu",
                "basis": "marginal",
                "quality": "forecast",
            }
            yield m.RUN_EMISSIONS, labels, 2.0

    by_boundary = sci_by_boundary(sci_report(tmp_path, NodeRun(emissions_g=0.5), extra=marginal))

    assert {key: sci.operational.value for key, sci in by_boundary.items()} == {
        ("gpu", "average"): 0.5,
        ("gpu", "marginal"): 2.0,
    }


def test_sci_boundary_with_unknown_emissions_is_left_out(tmp_path):
    assert [
        sci.boundary for sci in sci_report(tmp_path, NodeRun(cpu_j=900, emissions_g=0.5)).sci
    ] == ["gpu"]


def test_sci_without_intensity_is_finding(tmp_path):
    report = sci_report(tmp_path)

    assert report.sci == ()
    assert "no_sci" in finding_codes(report)


def test_sci_without_hardware_is_not_in_outputs(tmp_path):
    report = assess(run_frames(tmp_path), UserInputs(grams_per_kwh=360.0))

    assert report_document(report)["software_carbon_intensity"] == []
    assert "SCI" not in terminal_text(report)
    assert "no_sci" not in finding_codes(report)


def test_sci_table_has_both_parts_for_run_and_token(tmp_path):
    lines = terminal_text(sci_report(tmp_path, NodeRun(), grams_per_kwh=360.0)).splitlines()

    (run,) = [line.split() for line in lines if line.startswith("run ")]
    (token,) = [line.split() for line in lines if line.startswith("generated token ")]
    assert " ".join(run[2:]) == "average, given intensity 600.0 mg 125.0 mg 725.0 ± 1.0 mg"
    assert " ".join(token[3:]) == "average, given intensity 600.0 µg 125.0 µg 725.0 ± 1.0 µg"


def test_sci_table_with_unknown_half_width_states_none(tmp_path):
    frames = without_half_width(run_frames(tmp_path, NodeRun()), "gpu")
    inputs = UserInputs(hardware=BOARD, grams_per_kwh=360.0)

    lines = terminal_text(assess(frames, inputs)).splitlines()

    (run,) = [line.split() for line in lines if line.startswith("run ")]
    (token,) = [line.split() for line in lines if line.startswith("generated token ")]
    assert " ".join(run[5:]) == "600.0 mg 125.0 mg 725.0 mg"
    assert " ".join(token[6:]) == "600.0 µg 125.0 µg 725.0 µg"


def test_sci_on_shared_gpu_is_of_the_attributed_share(tmp_path):
    """The share of 3,000 of 6,000 J: 3 J for each of 1,000 tokens, 0.3 g at 360 g/kWh for all; M is
    0.125 g.
    """
    report = sci_report(tmp_path, NodeRun(), extra=share(3_000.0, 2_400.0), grams_per_kwh=360.0)
    (sci,) = report_document(report)["software_carbon_intensity"]

    assert report.work[0].energy_per_unit.value == pytest.approx(3)
    assert sci["energy_basis"] == "attributed"
    assert sci["operational_grams"] == pytest.approx(0.3)
    assert sci["sci_grams_per_run"] == pytest.approx(0.425)
    assert sci["operational_grams_per_unit"] == {"generated_tokens": pytest.approx(0.000_3)}
    assert sci["sci_grams_per_unit"] == {"generated_tokens": pytest.approx(0.000_425)}
    assert sci["sci_uncertainty_grams_per_unit"] == {"generated_tokens": None}
    text = " ".join(terminal_text(report).split())
    assert "O of an attributed boundary is of the energy attributed to the run" in text
    assert "of their energy per unit" not in text


def test_boundary_on_shared_gpu_states_whole_and_attributed_energy(tmp_path):
    """The GPU used 6,000 J, of which 3,000 J are the run's: 3 J for each of 1,000 tokens."""
    report = run_report(tmp_path, NodeRun(), extra=share(3_000.0, 2_400.0))
    (gpu,) = report_document(report)["boundaries"]

    assert (gpu["energy_joules"], gpu["attributed_energy_joules"]) == (6_000, 3_000)
    work = gpu["work"]["generated_tokens"]
    assert (work["energy_basis"], work["energy_per_unit_joules"]) == ("attributed", 3)
    assert "gpu, attributed" in terminal_text(report)


def test_boundary_on_own_gpu_is_of_the_devices(tmp_path):
    (gpu,) = report_document(run_report(tmp_path, NodeRun()))["boundaries"]

    assert gpu["attributed_energy_joules"] is None
    assert gpu["work"]["generated_tokens"]["energy_basis"] == "devices"


def test_sci_per_unit_of_phase_work_is_of_the_phase_energy(tmp_path):
    """2,000 ± 4 J of the phase for 1,000 tokens: 0.0002 g ± 0.2 % at 360 g/kWh."""
    run = NodeRun(
        phases={"load": (10, 4_000), "measure": (10, 2_000)},
        phase_work={"measure": {"generated_tokens": 1_000}},
        phase_uncertainty_j=4.0,
    )
    (sci,) = sci_report(tmp_path, run, grams_per_kwh=360.0).sci
    (unit,) = sci.units

    assert unit.operational.value == pytest.approx(0.000_2)
    assert unit.operational.half_width == pytest.approx(0.000_2 * 0.002)
    assert sci.per_unit["generated_tokens"].value == pytest.approx(0.000_325)


def test_sci_per_unit_of_the_whole_run_has_no_remark(tmp_path):
    assert "of their energy per unit" not in terminal_text(
        sci_report(tmp_path, NodeRun(), grams_per_kwh=360.0)
    )


def test_emissions_given_intensity_states_value_and_coverage_of_interval(tmp_path):
    """6,000 ± 10 J at 230 g/kWh: 383.3 ± 0.6 mg."""
    report = run_report(tmp_path, carbon=230.0)
    (emission,) = report_document(report)["emissions"]
    (sentence,) = [one for one in summary_sentences(report) if one.before == "The emissions are"]

    assert (
        "383.3 ± 0.6 mg CO₂eq (GPU; at 230 g/kWh (given); ± covers the energy only)"
        in terminal_text(report)
    )
    assert sentence.after == "for GPU (at 230 g/kWh (given); ± covers the energy only)."
    assert emission["given_intensity_grams_per_kilowatt_hour"] == 230
    assert emission["uncertainty_includes_intensity"] is False
    assert "carbon_low" not in finding_codes(report)


@pytest.mark.parametrize(
    ("grams_per_kwh", "found"), [(0.0, False), (0.23, True), (4.9, True), (5.0, False)]
)
def test_emissions_intensity_in_kg_is_finding(tmp_path, grams_per_kwh, found):
    report = run_report(tmp_path, carbon=grams_per_kwh)

    assert ("carbon_low" in finding_codes(report)) is found
    assert grams_per_kwh != 0.23 or "write --carbon 230" in terminal_text(report)


def test_report_without_intensity_names_the_option(tmp_path):
    assert "unknown without a carbon intensity; add one with --carbon G/KWH" in terminal_text(
        run_report(tmp_path)
    )
