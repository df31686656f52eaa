from contextlib import closing

import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, series_of_scrapes, write_history
from tests.analyzer.run_reports import RUN_GPU, SCRAPE_TIMES
from wattline.contract import metrics as m
from wattline_analyzer.core.runs.find import find_sweep_runs, load_found_run
from wattline_analyzer.core.runs.load import Clock
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.recommend import sweep
from wattline_analyzer.report import studies as sweeps
from wattline_analyzer.report.assess import assess

LABELS = {"experiment": "caps", "repeat": "2", "power_limit_watts": "300"}


def run_in_sweep(folder, run, reason="sw_power_cap", gpu=RUN_GPU):
    """Return a run of 300 W for 20 s with the clock event reason in the last 15 s."""

    def extra(t):
        held_s = min(max(t - START_S - 5, 0.0), 15.0)
        yield (
            m.GPU_CLOCK_EVENT_SECONDS,
            {"gpu": "0", "uuid": RUN_GPU.uuid, "reason": reason},
            held_s,
        )

    history = write_history(
        folder, series_of_scrapes((t, [*scrape([gpu], run, t), *extra(t)]) for t in SCRAPE_TIMES)
    )
    with closing(HistorySource(history)) as source:
        clock = Clock(lambda: START_S + 3_600, lambda _: None)
        seen_s = find_sweep_runs(source, "caps", 86_400, clock, print)
        assert list(seen_s) == [run.run_id]
        frames = sweeps.with_throttling_samples(
            source, load_found_run(source, run.run_id, seen_s[run.run_id], clock, print)
        )
    return sweep.sweep_run(frames, assess(frames))


def test_sweep_run_has_cap_energy_and_throttled_time(tmp_path):
    row = run_in_sweep(tmp_path, NodeRun(labels=LABELS))

    assert (row.setting.power_limit_w, row.repeat, row.unfit) == (300.0, "2", None)
    assert (row.energy.value, row.energy.half_width, row.duration_s) == (6_000.0, 10.0, 20.0)
    assert row.work["generated_tokens"].energy_per_unit.value == pytest.approx(6.0)  # 1,000 tokens
    assert row.capped_s == pytest.approx(15.0, abs=0.6)  # a scrape a second
    assert row.p95_power_w == row.mean_power_w == 300.0


def test_sweep_run_with_thermal_slowdown_is_unfit(tmp_path):
    row = run_in_sweep(tmp_path, NodeRun(labels=LABELS), reason="sw_thermal_slowdown")

    assert row.unfit.startswith("thermal or hardware slowdown for 1")


def test_sweep_run_without_energy_is_unfit(tmp_path):
    row = run_in_sweep(tmp_path, NodeRun(labels=LABELS), gpu=NodeGpu([(START_S - 1_000, 0.0)]))

    assert row.unfit == "the energy of a GPU is zero: its sensor or counter did not change"


def test_sweep_warm_up_is_left_out(tmp_path):
    assert run_in_sweep(tmp_path, NodeRun(labels={**LABELS, "phase": "warm-up"})) is None


def test_sweep_cap_that_is_no_number_is_named(tmp_path):
    with pytest.raises(ValueError, match="power_limit_watts is 'high', not a number"):
        run_in_sweep(tmp_path, NodeRun(labels={**LABELS, "power_limit_watts": "high"}))


def test_group_sweeps_other_labels_are_separate_sweeps(tmp_path):
    first = run_in_sweep(tmp_path, NodeRun(labels=LABELS))
    (tmp_path / "2").mkdir()
    second = run_in_sweep(
        tmp_path / "2", NodeRun(labels={**LABELS, "power_limit_watts": "200", "model": "large"})
    )

    assert [len(result.runs) for result in sweep.group_sweeps([first, second])] == [1, 1]
    assert [
        len(result.runs) for result in sweep.group_sweeps([first, second], joint=["model"])
    ] == [2]
