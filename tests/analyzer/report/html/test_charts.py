"""Parts of the page: chart lines, sort order of cells, sentences, tables."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun
from tests.analyzer.run_reports import run_frames, run_report
from wattline.contract import metrics as m
from wattline.figures import Figure
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.core.samples import Samples
from wattline_analyzer.core.tables import (
    Cell,
    bound_cell,
    duration_cell,
    energy_cell,
    energy_per_unit_cell,
    estimate_cell,
    mass_cell,
    number_cell,
    power_cell,
    ratio_cell,
    text_cell,
)
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.chart import Resolution, line_points, with_neighbors
from wattline_analyzer.report.html.charts import report_charts
from wattline_analyzer.report.html.page import _embedded
from wattline_analyzer.report.html.step_charts import phase_spans
from wattline_analyzer.report.sections.report import (
    Sentence,
    count_findings,
    report_tables,
    summary_sentences,
)

FINE = Resolution(points=100, decimals=2)


@pytest.mark.parametrize(
    ("cell", "text", "expected"),
    [
        (energy_cell(Figure(950, 12)), "950 ± 12 J", 950),
        (energy_cell(Figure(1.234 * 3_600, 18)), "1.234 ± 0.005 Wh", 1.234 * 3_600),
        (
            energy_cell(Figure(12.3 * 3.6e6, 1.8e5), estimated=True),
            "12.30 ± 0.05 kWh (estimate)",
            12.3 * 3.6e6,
        ),
        (bound_cell(Figure(3_480, skewed=(3_010, 3_950))), "3,480 J (3,010 to 3,950)", 3_480),
        (energy_per_unit_cell(Figure(0.0467, 0.0002)), "46.70 ± 0.20 mJ", 0.0467),
        (number_cell(50.0, "/s"), "50.00 /s", 50),
        (number_cell(230.0, "g/kWh"), "230.0 g/kWh", 230),
        (mass_cell(Figure(0.3833, 0.0006)), "383.3 ± 0.6 mg CO₂eq", 0.3833),
        (power_cell(Figure(12_345, 20)), "12.345 ± 0.020 kW", 12_345),
        (duration_cell(125.3), "2 min 5.3 s", 125.3),
        (duration_cell(3_723.0), "1 h 2 min 3 s", 3_723),
        (ratio_cell(0.981), "98.1 %", 0.981),
        (
            estimate_cell(Figure(-0.002, skewed=(-0.007, 0.004)), 100, " %"),
            "-0.2 % (-0.7 to 0.4)",
            -0.002,
        ),
        (number_cell(1.5e12), "1.500e+12", 1.5e12),
        (text_cell("2026-11-20T10:15:00+00:00"), "2026-11-20T10:15:00+00:00", None),
        (text_cell("H200"), "H200", None),
        (text_cell("4x"), "4x", None),
        (energy_cell(None), "–", None),
        (Cell(""), "", None),
    ],
)
def test_cell_sorts_by_its_value_in_the_base_unit(cell, text, expected):
    assert cell.text == text
    assert cell.sort_value == (expected if expected is None else pytest.approx(expected))


def test_cell_of_the_budget_sorts_by_its_half_width(tmp_path):
    """±10 J of the ledger."""
    table = next(
        entry
        for entry in report_tables(run_report(tmp_path, NodeRun()))
        if entry.title == "Uncertainty budget"
    )

    assert table.rows[0][1].text == "± 10 J (0.17 %)"
    assert table.rows[0][1].sort_value == 10


def test_line_points_long_series_keep_extremes():
    t = np.arange(100_000, dtype=np.float64)
    value = np.full(100_000, 300.0) + np.arange(100_000) % 7
    value[12_345], value[54_321] = 700.0, 60.0

    times, values = line_points(Samples(t, value), FINE)

    assert len(times) == len(values) <= 110
    assert values[times.index(12_345)] == 700
    assert values[times.index(54_321)] == 60
    assert times == sorted(times)
    assert (times[0], times[-1]) == (0, 99_999)


def test_with_neighbors_stops_at_gaps():
    """A run of 20 s scraped every 15 s has one sample, at 11 s."""
    quarters = Samples(
        np.array([-34.0, -19.0, -4.0, 11.0, 26.0, 41.0]), np.array([78.0, 78, 78, 700, 78, 78])
    )
    stopped = Samples(np.array([-34.0, -19.0, -4.0, 11.0, 86.0]), np.array([78.0, 78, 78, 700, 78]))

    assert with_neighbors(quarters, -2.0, 22.0).t.tolist() == [-4, 11, 26]
    assert with_neighbors(stopped, -2.0, 22.0).t.tolist() == [-4, 11]
    assert with_neighbors(quarters, 12.0, 22.0).t.tolist() == []


def test_chart_run_scraped_once_has_a_line(tmp_path):
    frames = run_frames(tmp_path, times=[START_S + 11 + 15 * number for number in range(-4, 5)])

    power = report_charts(assess(frames), frames, frames.raw)[0]

    assert power.lines[0].points == ([-4, 11, 26], [60, 300, 60])


def test_line_points_gap_interrupts_the_line():
    t = np.concatenate([np.arange(0, 5_000), np.arange(6_000, 9_000)]).astype(np.float64)

    times, values = line_points(Samples(t, np.sin(t)), FINE)

    gap = values.index(None)
    assert values.count(None) == 1
    assert (times[gap - 1], times[gap + 1]) == (4_999, 6_000)


def test_line_points_downsampled_series_has_only_given_gaps():
    t = np.array([0, 1, 2, 3, 300, 310, 590, 600, 900, 1_200, 1_500], dtype=np.float64)

    assert line_points(Samples(t, t), FINE, [])[1].count(None) == 0
    times, values = line_points(Samples(t, t), FINE, [(600, 900)])
    gap = values.index(None)
    assert (times[gap - 1], times[gap + 1]) == (600, 900)


def test_line_points_constant_stretch_takes_few_points():
    t = np.arange(5_000, dtype=np.float64)

    times, values = line_points(Samples(t, np.where(t < 2_500, 400.0, 350.0)), Resolution(5_000, 1))

    assert len(times) <= 260
    assert times[values.index(350)] - times[values.index(350) - 1] == 1  # the step keeps its slope


def test_summary_sentences_state_energy_work_and_emissions(tmp_path):
    report = run_report(tmp_path, NodeRun(work={"steps": 10.0}), carbon=200)

    texts = [f"{entry.before} {entry.figure} {entry.after}" for entry in summary_sentences(report)]

    # 300 W x 20 s = 6,000 J ± 10 J = 1.6667 Wh, and the sensor's -2.9 to +6.4 %; at 200 g/kWh
    # 0.3333 g
    assert texts[0] == (
        "The run used 1.67 ± 0.11 Wh on 1 GPU in 20.00 s (random error ± 0.0028 Wh (0.17 %), 95 % "
        "CI; "
        "sensor accuracy -0.049 to +0.11 Wh (6.4 %))."
    )
    assert summary_sentences(report)[1] == Sentence(
        "10 steps took", "600 ± 40 J per step", ", at 0.5000 steps/s."
    )
    assert "333.3 ± 0.6 mg CO₂eq" in texts[2]
    assert "at 200 g/kWh (given)" in texts[2]


def test_summary_running_run_says_so_far(tmp_path):
    report = run_report(tmp_path, NodeRun(end_s=None), gpus=[NodeGpu([(START_S - 100, 300)])])

    assert summary_sentences(report)[0].before == "The run has used so far"


def test_count_findings_returns_words(tmp_path):
    report = run_report(tmp_path, NodeRun(outcome="failed"))

    assert "1 warning" in count_findings(report)
    assert count_findings(report).count(" and ") <= 1


def test_phase_spans_small_lag_gives_one_span(tmp_path):
    def seconds(t):
        if not START_S + 2 <= t <= START_S + 17:
            return ()
        late = 0.004 * (int(t) % 3)
        return [
            (
                m.RUN_PHASE_SECONDS,
                {"run_id": "train-1", "phase": "measure"},
                t - START_S - 2 - late + 0.01,
            )
        ]

    frames = run_frames(tmp_path, NodeRun(), extra=seconds)

    (span,) = phase_spans(assess(frames), frames)
    assert span.phase == "measure"
    assert span.start_s == pytest.approx(2, abs=0.1)
    assert span.end_s == pytest.approx(16.5, abs=0.6)


def test_phase_spans_late_updates_are_placed_in_time(tmp_path):
    """Phases of 10, 9.5 and 0.5 s; the exported values lag by 6 s until the run has ended."""

    def seconds(t):
        now_s = t - START_S if t > START_S + 20 else t - START_S - 6
        lasted_s = {
            "warmup": min(now_s, 10),
            "measure": min(now_s - 10, 9.5),
            "rest": min(now_s - 19.5, 0.5),
        }
        run_labels = {"run_id": "train-1"}
        return [
            (m.RUN_PHASE_SECONDS, {**run_labels, "phase": name}, s)
            for name, s in lasted_s.items()
            if s > 0
        ]

    frames = run_frames(tmp_path, NodeRun(), extra=seconds)

    result = {
        span.phase: (span.start_s, span.end_s) for span in phase_spans(assess(frames), frames)
    }

    assert list(result) == ["warmup", "measure", "rest"]
    assert result["warmup"] == pytest.approx((0, 10), abs=0.05)
    assert result["measure"] == pytest.approx((10, 19.5), abs=0.05)
    assert result["rest"] == pytest.approx((19.5, 20), abs=0.05)


def test_phase_spans_phase_restarted_between_two_samples_has_a_gap(tmp_path):
    """Load 0 to 2, train 2 to 17, validate 17 to 18, train 18 to 20 s; no sample has the first
    start of train.
    """

    def phases(t):
        if t <= START_S + 20:
            return ()
        starts_s, seconds = (
            {"load": 0, "validate": 17, "train": 18},
            {"load": 2, "validate": 1, "train": 17},
        )
        labels = {name: {"run_id": "train-1", "phase": name} for name in starts_s}
        return [
            *(
                (m.RUN_PHASE_START, labels[name], START_S + start_s)
                for name, start_s in starts_s.items()
            ),
            *(
                (m.RUN_PHASE_SECONDS, labels[name], float(lasted_s))
                for name, lasted_s in seconds.items()
            ),
        ]

    frames = run_frames(tmp_path, NodeRun(), extra=phases)

    result = {
        span.phase: (span.start_s, span.end_s) for span in phase_spans(assess(frames), frames)
    }

    assert result == {"load": (0, 2), "validate": (17, 18), "train": (18, 20)}


def test_power_limit_lines_group_equal_limits(tmp_path):
    boxes = [
        NodeGpu([(START_S - 100, 300)], index=str(index), limit_w=limit)
        for index, limit in enumerate((400, 400, 350))
    ]
    frames = run_frames(tmp_path, gpus=boxes)

    (power, *_) = report_charts(assess(frames), frames, frames.raw)

    assert [line.name for line in power.lines if line.kind == "limit"] == [
        "limit, GPU 0, GPU 1",
        "limit, GPU 2",
    ]


def test_charts_without_samples_have_a_description(tmp_path):
    frames = run_frames(tmp_path)
    no_samples = table_of([])

    (power,) = report_charts(assess(frames), replace(frames, raw=no_samples), no_samples)

    assert power.lines == ()
    assert power.description == "No power samples of this run were found."


def test_report_tables_rows_match_columns(tmp_path):
    report = run_report(
        tmp_path,
        NodeRun(results={"loss": 0.5}, phases={"measure": (20.0, 6_000.0)}),
        intensity=230.0,
    )

    exported = report_tables(report)

    expected = {"Energy by device", "Power by device", "Phases", "Carbon intensity by slot"}
    assert expected | {"Results reported by the job"} <= {table.title for table in exported}
    for table in exported:
        assert {len(row) for row in (*table.rows, *table.totals)} == {len(table.columns)}


def test_embedded_data_escapes_html():
    hostile = "</script><!--<script>&amp;\u2028"

    text = str(_embedded({"name": hostile}))

    assert "<" not in text
    assert ">" not in text
    assert json.loads(text) == {"name": hostile}
