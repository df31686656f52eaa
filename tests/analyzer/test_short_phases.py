"""Energy by phase is refused below ten updates of the sensor."""

import pytest

from tests.analyzer.node import Gpu, Run
from tests.analyzer.reported import BOX, BOXED, codes, found, report_of

VOLTA = Gpu(BOX, name="Tesla V100-SXM2-16GB", architecture="volta")


def energies(report):
    return {phase.name: phase.energy for phase in report.phases}


def test_a_phase_of_less_than_ten_updates_has_a_time_and_no_energy(tmp_path):
    run = Run(phases={"load": (0.9, 270), "measure": (19.1, 5_730)})

    report = report_of(tmp_path, run)

    assert energies(report)["load"] == {}
    assert energies(report)["measure"]["gpu"].value == 5_730
    assert [phase.duration_s for phase in report.phases if phase.name == "load"] == [0.9]
    ((_, text),) = found(report, "phase_too_short")
    assert text.startswith("no GPU energy for the phase load (at most 0.90 s): the sensor updates every 0.1 s")
    assert "make such phases 1 s or longer" in text


@pytest.mark.parametrize(
    ("gpu", "seconds", "told"),
    [(BOXED, 1.0, True), (VOLTA, 0.3, True), (VOLTA, 0.2, True), (VOLTA, 0.1, False)],
    ids=["A100, 1 s", "V100, 0.3 s", "V100, 0.2 s", "V100, 0.1 s"],
)
def test_how_short_a_phase_may_be_depends_on_how_often_the_sensor_updates(tmp_path, gpu, seconds, told):
    report = report_of(tmp_path, Run(phases={"step": (seconds, 300 * seconds)}), gpus=[gpu])

    assert ("gpu" in energies(report)["step"]) is told
    assert ("phase_too_short" in codes(report)) is not told


def test_little_work_in_each_of_many_phases_is_not_held_against_the_energy_of_one(tmp_path):
    """889 tokens in 5 s, 9 in each of 12 s and 3 that were reported late, at 300 W: 17 s have all of it."""
    steps = {f"step-{n}": (1.0, 300.0) for n in range(12)}
    done = {"measure": 889.0, "load": 3.0, **dict.fromkeys(steps, 9.0)}
    run = Run(
        phases={"load": (3.0, 900.0), "measure": (5.0, 1_500.0), **steps},
        phase_work={name: {"generated_tokens": amount} for name, amount in done.items()},
    )

    (work,) = report_of(tmp_path, run).work

    assert set(work.phases) == {"measure", *steps}
    assert work.energy_per_unit.value == pytest.approx(17 * 300 / 1_000)


@pytest.mark.parametrize(
    ("worked", "named"), [(("measure",), []), (("measure", "load"), ["load"]), ((), ["load"])], ids=str
)
def test_a_phase_around_the_work_is_missed_by_nobody(tmp_path, worked, named):
    work = {name: {"steps": 10.0} for name in worked}
    report = report_of(tmp_path, Run(phases={"load": (0.5, 150), "measure": (19.5, 5_850)}, phase_work=work))

    assert energies(report)["load"] == {}
    said = [text.partition(" (")[0] for _, text in found(report, "phase_too_short")]
    assert said == [f"no GPU energy for the phase {name}" for name in named]


def test_work_of_a_phase_that_is_too_short_has_the_energy_of_the_whole_run(tmp_path):
    run = Run(phases={"load": (19.5, 5_850), "burst": (0.5, 150)}, phase_work={"burst": {"generated_tokens": 1_000}})

    report = report_of(tmp_path, run)

    assert report.work[0].phases == ()
    assert report.work[0].energy_per_unit.value == 6  # 6,000 J, not 150 J, over 1,000 tokens
