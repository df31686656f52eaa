"""Summary of an ended run."""

import pytest

from wattline.client import summary
from wattline.contract.run import Run
from wattline.figures import Figure


def parsed(**fields):
    energies = {
        "energy_joules": {},
        "energy_uncertainty_joules": {},
        "integrated_energy_joules": {},
        "covered_ratio": {},
    }
    times = {"started_at": 0.0, "ended_at": 2.0, "duration_seconds": 2.0, "phases": []}
    known = {
        "run_id": "r",
        "workload": "w",
        "labels": {},
        "gpus": [],
        "state": "ended",
        "outcome": "ok",
    }
    more = {"work": {}, "results": {}, "emissions_grams": [], "notes": []}
    return Run.parse(known | energies | times | more | fields)


def measured(**work):
    return {
        "name": "measure",
        "started_at": 0.0,
        "duration_seconds": 1.0,
        "energy_joules": {"gpu": 300.0},
        "work": work,
    }


def lines(**fields):
    return list(summary.summary_lines(parsed(**fields), "ok", None))


@pytest.mark.parametrize(
    ("unit", "amount", "line"),
    [
        ("steps", 30.0, "10.00 J per step during the phase measure"),
        ("generated_tokens", 1_200.0, "250.0 mJ per generated token during the phase measure"),
        ("images", 3.0, "100.0 J per image during the phase measure"),
        ("flop", 3e14, "1.000 pJ per flop during the phase measure"),
    ],
)
def test_summary_has_energy_per_only_unit_once(unit, amount, line):
    phase = measured(**{unit: amount})

    (only,) = lines(phases=[phase], work=phase["work"], energy_joules={"gpu": {"GPU-0": 500.0}})

    assert only == (
        f"run r ok in 2.0 s: 500.0 J of the GPUs (mean 250 W), {line}; wattline report r"
    )


def test_summary_lines_omit_energy_per_secondary_unit():
    phase = measured(requests_failed=3.0)
    shown = lines(phases=[phase], work=phase["work"], energy_joules={"gpu": {"GPU-0": 500.0}})

    assert not [line for line in shown if "per" in line.split()]


def test_summary_lines_report_outcome_of_exporter():
    *_, before, last = lines(outcome="failed")

    assert before == "the command ended as ok, but the run had already been ended as failed"
    assert last.startswith("run r failed in 2.0 s")
    assert len(lines(outcome="ok")) == len(lines(outcome="failed")) - 1


def test_summary_last_lines_have_energy_power_emissions_and_command():
    # 300 W and 200 W for 2 s; 0.2 g + 0.1 g by the average intensity, with the relative errors
    # 2.5 J / 1,000 J (0.5 mg) and 0.25 J / 50 J (0.5 mg), which add
    shown = lines(
        energy_joules={"gpu": {"GPU-0": 600.0, "GPU-1": 400.0}, "cpu": {"0": 50.0}},
        energy_uncertainty_joules={"gpu": {"GPU-0": 1.5, "GPU-1": 1.0}, "cpu": {"0": 0.25}},
        emissions_grams=[
            {"component": "gpu", "basis": "average", "quality": "actual", "grams": 0.2},
            {"component": "cpu", "basis": "average", "quality": "static", "grams": 0.1},
            {"component": "gpu", "basis": "marginal", "quality": "actual", "grams": 7.0},
        ],
    )

    assert shown == [
        "run r ok in 2.0 s: 1,000.0 ± 2.5 J of the GPUs (mean 500.0 W)",
        "50.00 ± 0.25 J of the CPUs (mean 25.00 W)",
        "300.0 ± 1.0 mg CO₂eq; wattline report r",
    ]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"work": {"steps": 30.0, "padding_tokens": 5.0}},
            "(mean 300 W), 20.00 J per step; wattline report",
        ),
        (
            {"work": {"requests": 3.0, "generated_tokens": 300.0}},
            "(mean 300 W), 2.000 J per generated token; ",
        ),
        (
            {"work": {"steps": 30.0}, "phases": [measured(steps=30.0)]},
            "(mean 300 W), 10.00 J per step during the phase measure; wattline report",
        ),
        (
            {"work": {"steps": 30.0}, "attributed_energy_joules": {"gpu": {"GPU-0": 150.0}}},
            "5.000 J per step attributed to this run; wattline report",
        ),
    ],
)
def test_summary_last_line_has_energy_per_primary_unit(fields, text):
    *_, last = lines(energy_joules={"gpu": {"GPU-0": 600.0}}, **fields)

    assert text in last


def test_summary_of_one_unit_over_the_whole_run_is_one_line():
    assert len(lines(energy_joules={"gpu": {"GPU-0": 600.0}}, work={"steps": 30.0})) == 1


def test_summary_names_share_of_gpus_that_others_used():
    (line,) = lines(
        energy_joules={"gpu": {"GPU-0": 600.0, "GPU-1": 400.0}},
        energy_uncertainty_joules={"gpu": {"GPU-0": 1.5, "GPU-1": 1.0}},
        attributed_energy_joules={"gpu": {"GPU-0": 150.0}},
    )

    assert "1,000.0 ± 2.5 J of the GPUs (mean 500.0 W; 550.0 J attributed to this run)" in line


def test_summary_emissions_of_one_component_only_are_unknown():
    run = parsed(
        energy_joules={"gpu": {"GPU-0": 600.0}, "cpu": {"0": 50.0}},
        emissions_grams=[
            {"component": "gpu", "basis": "average", "quality": "actual", "grams": 0.2}
        ],
    )

    assert run.emissions_g.state == "unknown"
    assert "CO₂eq" not in "".join(summary.summary_lines(run, "ok", None))
    assert run.energy() == Figure(650.0)


def test_summary_energy_is_rounded_to_random_and_sensor_error():
    """6,160 J ± 3.7 J by a sensor of -180 to +610 J: 610 J together, of which one digit is
    known.
    """
    run = parsed(
        energy_joules={"gpu": {"GPU-0": 6160.0}},
        energy_uncertainty_joules={"gpu": {"GPU-0": 3.7}},
        energy_sensor_limits_joules={"gpu": {"GPU-0": (-180.0, 610.0)}},
        work={"steps": 9.0},
    )
    energy, last = summary.summary_lines(run, "ok", None)

    assert energy.endswith(
        "6,200 ± 600 J of the GPUs (± 4 J random, -180 to +610 J sensor accuracy; mean 3,100 W)"
    )
    assert last == "680 ± 70 J per step; wattline report r"
    result = summary.RunResult.of("r", run)
    assert (result.energy_joules, result.uncertainty_joules) == (6160.0, 3.7)
    assert str(summary.EnergySoFar(6160.0, 3.7, result.total_uncertainty_joules)) == "6,200 ± 600 J"


def test_summary_without_random_error_states_no_half_width():
    """The sensor's -180 to +610 J alone are not the interval, but decide the digits."""
    run = parsed(
        energy_joules={"gpu": {"GPU-0": 6160.0}},
        energy_sensor_limits_joules={"gpu": {"GPU-0": (-180.0, 610.0)}},
        work={"steps": 9.0},
        emissions_grams=[
            {"component": "gpu", "basis": "average", "quality": "actual", "grams": 0.2}
        ],
    )
    (line,) = summary.summary_lines(run, "ok", None)

    assert "6,200 J of the GPUs (-180 to +610 J sensor accuracy; mean 3,100 W), 200.0 mg" in line
    assert line.endswith("mg CO₂eq, 680 J per step; wattline report r")
    assert summary.RunResult.of("r", run).total_uncertainty_joules is None
    assert summary.RunResult.of("r", run).emissions_uncertainty_grams is None


def test_summary_sum_of_components_has_random_errors_and_sensor_accuracy():
    """4 J of GPU and CPU, with the 3 J of the GPU's sensor: √(4² + 3²) = 5."""
    run = parsed(
        energy_joules={"gpu": {"GPU-0": 600.0}, "cpu": {"0": 50.0}},
        energy_uncertainty_joules={"gpu": {"GPU-0": 4.0}, "cpu": {"0": 0.0}},
        energy_sensor_limits_joules={"gpu": {"GPU-0": (-3.0, 2.0)}},
    )
    result = summary.RunResult.of("r", run)

    assert result.energy_joules == 650.0
    assert result.uncertainty_joules == 4.0
    assert result.total_uncertainty_joules == 5.0


def test_summary_marks_simulated_gpus():
    gpus = [{"gpu": "0", "uuid": "GPU-0", "name": "SIMULATED NVIDIA H200"}]
    (line,) = lines(gpus=gpus, energy_joules={"gpu": {"GPU-0": 600.0}})

    assert "600.0 J of the SIMULATED GPUs (mean 300 W)" in line


def test_summary_of_unknown_energy_names_it_and_counts_no_part_as_the_whole():
    run = parsed(
        energy_joules={"gpu": {"GPU-0": None}, "cpu": {"0": 50.0}},
        energy_uncertainty_joules={"cpu": {"0": 0.25}},
        energy_state={"gpu": {"GPU-0": "unknown"}},
        energy_reason={"gpu": {"GPU-0": "it reports neither energy nor power"}},
        work={"steps": 2.0},
    )

    assert list(summary.summary_lines(run, "ok", None)) == [
        "run r ok in 2.0 s: energy of the GPUs unknown (it reports neither energy nor power)",
        "50.00 ± 0.25 J of the CPUs (mean 25.00 W)",
        "wattline report r",
    ]
    assert summary.EnergySoFar.of(run) is None
    assert summary.RunResult.of("r", run) == summary.RunResult("r", "ok", 2.0)


def test_log_summary_of_unreadable_response_logs_one_line(capfd):
    assert summary.log_summary({"run_id": "r"}, "ok", None) is None
    assert capfd.readouterr().err == (
        "wattline: cannot read the exporter's response: state: field required; "
        "install the same version of wattline for both\n"
    )


def test_summary_shows_results_of_problems_only_if_there_are_some():
    results = {
        "goodput_ratio": 0.5,
        "requests_failed": 0.0,
        "error_ratio": 0.0,
        "requests_without_usage": 2.0,
    }

    first, *_ = lines(results=results, energy_joules={"gpu": {"GPU-0": 600.0}})

    assert first == "goodput_ratio 0.5, requests_without_usage 2"


def test_summary_has_three_results_and_one_unit_per_line():
    results = dict.fromkeys(
        ("loss", "score", "tokens_per_second", "loss_first", "ttft_seconds_mean"), 1.5
    )

    shown = lines(
        results=results,
        energy_joules={"gpu": {"GPU-0": 600.0}},
        work={"steps": 2.0, "samples": 6.0},
    )

    assert shown[:3] == [
        "loss 1.5, score 1.5, tokens_per_second 1.5",
        "loss_first 1.5",
        "300.0 J of the GPUs per step over the whole run",
    ]
    assert ", 100.0 J per sample; wattline report" in shown[3]


def test_summary_result_above_9999_has_no_exponent():
    first, *_ = lines(results={"tokens_per_second": 158_804.0, "error_ratio": 0.00012345})

    assert first == "tokens_per_second 158,804, error_ratio 0.0001234"
