"""Energy, rate and work of phases, with a minimum of ten sensor updates."""

import pytest

from tests.analyzer.node import NodeGpu, NodeRun
from tests.analyzer.run_reports import (
    POWER_STEPS,
    RUN_GPU,
    finding_codes,
    finding_texts,
    run_report,
    terminal_text,
)

VOLTA = NodeGpu(POWER_STEPS, name="Tesla V100-SXM2-16GB", architecture="volta")


def energies(report):
    return {phase.name: phase.energy for phase in report.phases}


def test_phase_shorter_than_ten_updates_has_time_but_no_energy(tmp_path):
    run = NodeRun(phases={"load": (0.9, 270), "measure": (19.1, 5_730)})

    report = run_report(tmp_path, run)

    assert energies(report)["load"] == {}
    assert energies(report)["measure"]["gpu"].value == 5_730
    assert [phase.duration_s for phase in report.phases if phase.name == "load"] == [0.9]
    ((_, text),) = finding_texts(report, "phase_too_short")
    assert text.startswith(
        "no GPU energy for the phase load (at most 0.90 s): the sensor updates every 0.1 s"
    )
    assert "make such phases 1 s or longer" in text


@pytest.mark.parametrize(
    ("gpu", "seconds", "has_energy"),
    [(RUN_GPU, 1.0, True), (VOLTA, 0.3, True), (VOLTA, 0.2, True), (VOLTA, 0.1, False)],
    ids=["A100, 1 s", "V100, 0.3 s", "V100, 0.2 s", "V100, 0.1 s"],
)
def test_phase_minimum_length_depends_on_update_interval(tmp_path, gpu, seconds, has_energy):
    report = run_report(tmp_path, NodeRun(phases={"step": (seconds, 300 * seconds)}), gpus=[gpu])

    assert ("gpu" in energies(report)["step"]) is has_energy
    assert ("phase_too_short" in finding_codes(report)) is not has_energy


def test_phase_work_spread_over_many_phases_uses_energy_of_all(tmp_path):
    """889 tokens in 5 s, 9 in each of 12 steps of 1 s and 3 reported late, at 300 W: work phases
    last 17 s.
    """
    steps = {f"step-{n}": (1.0, 300.0) for n in range(12)}
    done = {"measure": 889.0, "load": 3.0, **dict.fromkeys(steps, 9.0)}
    run = NodeRun(
        phases={"load": (3.0, 900.0), "measure": (5.0, 1_500.0), **steps},
        phase_work={name: {"generated_tokens": amount} for name, amount in done.items()},
    )

    (work,) = run_report(tmp_path, run).work

    assert set(work.phases) == {"measure", *steps}
    assert work.energy_per_unit.value == pytest.approx(17 * 300 / 1_000)


@pytest.mark.parametrize(
    ("work_phases", "reported"),
    [(("measure",), []), (("measure", "load"), ["load"]), ((), ["load"])],
    ids=str,
)
def test_phase_too_short_is_reported_only_where_work_may_be_in_it(tmp_path, work_phases, reported):
    work = {name: {"steps": 10.0} for name in work_phases}
    report = run_report(
        tmp_path, NodeRun(phases={"load": (0.5, 150), "measure": (19.5, 5_850)}, phase_work=work)
    )

    assert energies(report)["load"] == {}
    starts = [text.partition(" (")[0] for _, text in finding_texts(report, "phase_too_short")]
    assert starts == [f"no GPU energy for the phase {name}" for name in reported]


def test_phase_work_in_too_short_phase_uses_energy_of_run(tmp_path):
    run = NodeRun(
        phases={"load": (19.5, 5_850), "burst": (0.5, 150)},
        phase_work={"burst": {"generated_tokens": 1_000}},
    )

    report = run_report(tmp_path, run)

    assert report.work[0].phases == ()
    assert report.work[0].energy_per_unit.value == 6  # 6,000 J, not 150 J, over 1,000 tokens


def test_phase_table_states_why_energy_is_absent_and_remaining_time(tmp_path):
    """A run of 20 s with phases of 0.9 and 18 s: 1.1 s are in no phase."""
    text = terminal_text(
        run_report(tmp_path, NodeRun(phases={"load": (0.9, 270), "measure": (18.0, 5_400)}))
    )

    assert "–: shorter than 1 s, which is 10 updates of the GPU's sensor." in text
    assert "Not in any phase: 1.10 s of the run." in text


def test_phase_table_of_a_full_run_states_that_further_phases_do_not_count(tmp_path):
    """16 phases of one second; 4 s were in the 17th."""
    phases = {f"epoch{number}": (1.0, 300) for number in range(16)}
    text = terminal_text(run_report(tmp_path, NodeRun(phases=phases)))

    assert (
        "Not in any phase: 4.00 s of the run. A run has at most 16 phases; further ones are not "
        "counted." in text
    )


def test_phase_table_without_gaps_has_no_notes(tmp_path):
    text = terminal_text(
        run_report(tmp_path, NodeRun(phases={"load": (2.0, 600), "measure": (18.0, 5_400)}))
    )

    assert "–: " not in text
    assert "Not in any phase" not in text
