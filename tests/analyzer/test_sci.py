"""Software carbon intensity by hand: 6,000 J of the GPU and 900 J of the CPU, in 20 s, for 1,000 tokens."""

import io
import json
from dataclasses import replace

import pytest

from analyzer.assess.run import assess
from analyzer.model.emissions import Past, PastSlot
from analyzer.model.user_inputs import Given, Hardware
from analyzer.output.documents import report_document
from analyzer.output.terminal import console, terminal_report
from exporter.contract import metrics as m
from tests.analyzer.node import START_S, Run
from tests.analyzer.reported import codes, frames_with

JOULES = 3.6e6
# 1,576.8 kg over 4 years of 365 days, half of it reserved, for 20 s: 1,576,800 g x 20 / 126,144,000 / 2 = 0.125 g
BOARD = Hardware(1_576.8, 4, 0.5)


def assessed(folder, run=None, *, more=lambda _: (), **told):
    return assess(frames_with(folder, run or Run(cpu_j=900), more=more), Given(hardware=BOARD, **told))


def by_place(report):
    return {(one.boundary, one.basis): one for one in report.sci}


def printed(report):
    target = io.StringIO()
    console(target, plain_columns=140).print(terminal_report(report))
    return target.getvalue()


def test_operational_and_embodied_grams_are_told_apart_and_their_sum_is_per_run_and_per_unit(tmp_path):
    found = by_place(assessed(tmp_path, grams_per_kwh=360.0))

    gpu = found["gpu", "average"]
    assert gpu.operational.value == pytest.approx(0.6)  # 6,000 J at 360 g/kWh
    assert gpu.embodied_g == pytest.approx(0.125, rel=1e-12)
    assert gpu.whole.value == pytest.approx(0.725)
    assert gpu.whole.half == pytest.approx(0.001)  # of the energy alone: 10 J
    assert gpu.per_unit["generated_tokens"].value == pytest.approx(0.000725)
    assert found["gpu+cpu", "average"].operational.value == pytest.approx(0.69)


def test_a_unit_is_as_unsure_as_its_amount(tmp_path):
    """0.725 ± 0.001 g over 1,000 tokens, which may be 900 to 1,100: 0.000725 x (1,000 / 900 - 1) more."""
    gpu = by_place(assessed(tmp_path, grams_per_kwh=360.0))["gpu", "average"]
    told = replace(gpu, limits={"generated_tokens": (900.0, 1_100.0)})
    none = replace(gpu, limits={"generated_tokens": (0.0, 1_100.0)})

    assert told.per_unit["generated_tokens"].half == pytest.approx(0.000001 + 0.000725 / 9)
    assert told.whole == gpu.whole
    assert none.per_unit["generated_tokens"].half is None


def test_energy_times_pue_is_a_figure_of_its_own_and_what_is_embodied_stays(tmp_path):
    found = by_place(assessed(tmp_path, grams_per_kwh=360.0, pue=1.5))

    assert found["gpu × PUE 1.5", "average"].operational.value == pytest.approx(0.9)
    assert found["gpu × PUE 1.5", "average"].embodied_g == found["gpu", "average"].embodied_g
    assert found["gpu", "average"].operational.value == pytest.approx(0.6)


def test_restated_grams_come_before_the_ledgers_and_those_before_a_given_intensity(tmp_path):
    slot_s = START_S // 1_800 * 1_800
    past = Past("gb", "GB", "average", (PastSlot(slot_s, slot_s + 1_800, 720.0, "actual"),))
    run = Run(emissions_g=0.5)
    (tmp_path / "a").mkdir()

    ledger = by_place(assessed(tmp_path, run, grams_per_kwh=360.0))["gpu", "average"]
    later = by_place(assessed(tmp_path / "a", run, grams_per_kwh=360.0, past=(past,)))["gpu", "average"]

    assert (ledger.origin, ledger.operational.value) == ("ledger", 0.5)
    assert (later.origin, later.operational.value) == ("restated", pytest.approx(1.2))


def test_restated_grams_of_a_part_of_the_energy_are_no_operational_grams(tmp_path):
    """At 360 g/kWh from the first to the tenth of 20 seconds: 0.3 g of half the energy, beside the 0.5 g of all."""
    past = Past("slots.csv", "", "average", (PastSlot(START_S - 60, START_S + 10, 360.0, "actual"),))
    (tmp_path / "a").mkdir()

    (one,) = assessed(tmp_path, Run(emissions_g=0.5), past=(past,)).sci
    without = assessed(tmp_path / "a", Run(), past=(past,))

    assert (one.origin, one.operational.value) == ("ledger", 0.5)
    assert without.sci == ()
    assert {"restated_missing", "no_sci"} <= set(codes(without))


def test_average_and_marginal_have_an_sci_each(tmp_path):
    def marginal(t):
        if t > START_S:
            where = {"run_id": "train-1", "component": "gpu", "basis": "marginal", "quality": "forecast"}
            yield m.RUN_EMISSIONS, where, 2.0

    found = by_place(assessed(tmp_path, Run(emissions_g=0.5), more=marginal))

    assert {key: one.operational.value for key, one in found.items()} == {
        ("gpu", "average"): 0.5,
        ("gpu", "marginal"): 2.0,
    }


def test_a_boundary_of_which_a_components_grams_are_not_known_has_no_sci(tmp_path):
    assert [one.boundary for one in assessed(tmp_path, Run(cpu_j=900, emissions_g=0.5)).sci] == ["gpu"]


def test_without_an_intensity_there_is_no_sci_and_what_to_give_is_said(tmp_path):
    report = assessed(tmp_path)

    assert report.sci == ()
    assert "no_sci" in codes(report)


def test_nobody_is_shown_an_sci_who_did_not_ask(tmp_path):
    report = assess(frames_with(tmp_path), Given(grams_per_kwh=360.0))

    assert report_document(report)["software_carbon_intensity"] == []
    assert "SCI" not in printed(report)
    assert "no_sci" not in codes(report)


def test_the_table_names_both_parts_for_the_run_and_for_a_token(tmp_path):
    lines = printed(assessed(tmp_path, Run(), grams_per_kwh=360.0)).splitlines()

    (run,) = [line.split() for line in lines if line.startswith("run ")]
    (token,) = [line.split() for line in lines if line.startswith("generated token ")]
    assert " ".join(run[2:]) == "average, given intensity 600.0 mg 125.0 mg 725.0 ± 1.0 mg"
    assert " ".join(token[3:]) == "average, given intensity 600.0 µg 125.0 µg 725.0 ± 1.0 µg"


def test_the_command_needs_both_the_kilograms_and_the_lifetime(analyzer, steady_history):
    call = ("report", "--run-id", "train-1", "--since", "36500d", "--source", steady_history, "--format", "json")

    good = analyzer(*call, "--carbon", "360", "--embodied-kg", "1576.8", "--lifetime-years", "4")
    half = analyzer(*call, "--embodied-kg", "1500")

    (one,) = json.loads(good.stdout)["software_carbon_intensity"]
    assert one["operational_grams"] == pytest.approx(1.2)  # two GPUs
    assert one["embodied_grams"] == pytest.approx(0.25)
    assert one["sci_grams_per_unit"]["generated_tokens"] == pytest.approx(0.00145)
    assert one["sci_uncertainty_grams_per_run"] == pytest.approx(1.2 * 20 / 12_000)  # ± 10 J of each GPU
    assert one["sci_uncertainty_grams_per_unit"]["generated_tokens"] == pytest.approx(1.2 * 20 / 12_000 / 1_000)
    assert (half.returncode, half.stderr.count("\n")) == (2, 1)
    assert "--lifetime-years" in half.stderr
