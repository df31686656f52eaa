"""What the page is made of: lines of few points, the order of cells, sentences, tables."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from analyzer.assess.run import assess
from analyzer.model.samples import Samples
from analyzer.output.html import order as page_order
from analyzer.output.html.charts import charts
from analyzer.output.html.lines import Fineness, drawn, reaching
from analyzer.output.html.page import _embedded
from analyzer.output.html.steps import spans
from analyzer.output.html.tables import tables
from analyzer.output.sections.summary import Sentence, findings_in_short, lead
from exporter.contract import metrics as m
from tests.analyzer.node import START_S, Gpu, Run
from tests.analyzer.reported import frames_with, report_of

FINE = Fineness(points=100, decimals=2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("950 ± 12 J", 950),
        ("1.234 ± 0.005 Wh", 1.234 * 3_600),
        ("12.30 ± 0.05 kWh (estimate)", 12.3 * 3.6e6),
        ("3,480 J (3,010 to 3,950)", 3_480),
        ("46.70 ± 0.20 mJ per generated token", 0.0467),
        ("50.00 generated tokens/s", 50),
        ("230.0 g/kWh", 230),
        ("383.3 ± 0.6 mg CO₂eq", 0.3833),
        ("12.345 ± 0.020 kW", 12_345),
        ("2 min 5.3 s", 125.3),
        ("1 h 2 min 3 s", 3_723),
        ("98.1 %", 98.1),
        ("-0.2 % (-0.7 to 0.4 %)", -0.2),
        ("1.500e+12", 1.5e12),
        ("± 3.5 J (0.011 %)", 3.5),
        ("2026-11-20T10:15:00+00:00", None),
        ("H200", None),
        ("4x", None),
        ("–", None),
        ("", None),
    ],
)
def test_a_cell_is_sorted_by_its_number_in_base_units(text, expected):
    assert page_order.number(text) == (expected if expected is None else pytest.approx(expected))


def test_a_long_line_keeps_its_lowest_and_its_highest_value_in_few_points():
    t = np.arange(100_000, dtype=np.float64)
    value = np.full(100_000, 300.0) + np.arange(100_000) % 7
    value[12_345], value[54_321] = 700.0, 60.0

    times, values = drawn(Samples(t, value), FINE)

    assert len(times) == len(values) <= 110
    assert values[times.index(12_345)] == 700
    assert values[times.index(54_321)] == 60
    assert times == sorted(times)
    assert (times[0], times[-1]) == (0, 99_999)


def test_a_line_reaches_beyond_what_is_shown_where_no_sample_is_missing():
    """A run of 20 s that was scraped each 15 s: one sample lies within, at 11 s."""
    quarters = Samples(np.array([-34.0, -19.0, -4.0, 11.0, 26.0, 41.0]), np.array([78.0, 78, 78, 700, 78, 78]))
    stopped = Samples(np.array([-34.0, -19.0, -4.0, 11.0, 86.0]), np.array([78.0, 78, 78, 700, 78]))

    assert reaching(quarters, -2.0, 22.0).t.tolist() == [-4, 11, 26]
    assert reaching(stopped, -2.0, 22.0).t.tolist() == [-4, 11]
    assert reaching(quarters, 12.0, 22.0).t.tolist() == []


def test_the_chart_of_a_run_that_was_scraped_once_has_a_line(tmp_path):
    frames = frames_with(tmp_path, times=[START_S + 11 + 15 * number for number in range(-4, 5)])

    power = charts(assess(frames), frames, frames.raw)[0]

    assert power.lines[0].points == ([-4, 11, 26], [60, 300, 60])


def test_a_gap_stops_the_line_at_the_samples_around_it():
    t = np.concatenate([np.arange(0, 5_000), np.arange(6_000, 9_000)]).astype(np.float64)

    times, values = drawn(Samples(t, np.sin(t)), FINE)

    gap = values.index(None)
    assert values.count(None) == 1
    assert (times[gap - 1], times[gap + 1]) == (4_999, 6_000)


def test_a_series_that_was_thinned_before_has_the_gaps_that_are_told_and_no_others():
    t = np.array([0, 1, 2, 3, 300, 310, 590, 600, 900, 1_200, 1_500], dtype=np.float64)

    assert drawn(Samples(t, t), FINE, [])[1].count(None) == 0
    times, values = drawn(Samples(t, t), FINE, [(600, 900)])
    gap = values.index(None)
    assert (times[gap - 1], times[gap + 1]) == (600, 900)


def test_a_long_stretch_of_one_value_takes_few_points():
    t = np.arange(5_000, dtype=np.float64)

    times, values = drawn(Samples(t, np.where(t < 2_500, 400.0, 350.0)), Fineness(5_000, 1))

    assert len(times) <= 260
    assert times[values.index(350)] - times[values.index(350) - 1] == 1  # the step stays as steep as it was


def test_what_a_run_cost_is_said_in_sentences_with_why_an_interval_is_missing(tmp_path):
    report = report_of(tmp_path, Run(work={"steps": 10.0}), carbon=200)

    texts = [f"{one.before} {one.figure} {one.after}" for one in lead(report)]

    # 300 W x 20 s = 6,000 J ± 10 J = 1.6667 Wh; at 200 g/kWh 0.3333 g
    assert texts[0].startswith("The run used 1.6667 ± 0.0028 Wh on 1 GPU in 20.00 s; with 95 % the truth lies between")
    assert "between 1.6639 and 1.6695 Wh" in texts[0]
    assert lead(report)[1] == Sentence("10 steps took", "600.0 ± 1.0 J per step", ", at 0.5000 steps/s.")
    assert "333.3 ± 0.6 mg CO₂eq" in texts[2]
    assert "given intensity" in texts[2]


def test_a_run_that_is_on_has_used_its_energy_so_far(tmp_path):
    report = report_of(tmp_path, Run(end_s=None), gpus=[Gpu([(START_S - 100, 300)])])

    assert lead(report)[0].before == "The run has used so far"


def test_findings_are_counted_in_words(tmp_path):
    report = report_of(tmp_path, Run(outcome="failed"))

    assert "1 warning" in findings_in_short(report)
    assert findings_in_short(report).count(" and ") <= 1


def test_a_phase_is_one_span_although_its_seconds_lag_by_milliseconds(tmp_path):
    def seconds(t):
        if not START_S + 2 <= t <= START_S + 17:
            return ()
        late = 0.004 * (int(t) % 3)
        return [(m.RUN_PHASE_SECONDS, {"run_id": "train-1", "phase": "measure"}, t - START_S - 2 - late + 0.01)]

    frames = frames_with(tmp_path, Run(), more=seconds)

    (span,) = spans(assess(frames), frames)
    assert span.phase == "measure"
    assert span.start_s == pytest.approx(2, abs=0.1)
    assert span.end_s == pytest.approx(16.5, abs=0.6)


def test_phases_that_the_exporter_tells_of_late_stand_where_they_were(tmp_path):
    """Phases of 10, 9.5 and 0.5 s; what is shown lags behind by 6 s until the run has ended."""

    def seconds(t):
        now_s = t - START_S if t > START_S + 20 else t - START_S - 6
        lasted_s = {"warmup": min(now_s, 10), "measure": min(now_s - 10, 9.5), "rest": min(now_s - 19.5, 0.5)}
        own = {"run_id": "train-1"}
        return [(m.RUN_PHASE_SECONDS, {**own, "phase": name}, s) for name, s in lasted_s.items() if s > 0]

    frames = frames_with(tmp_path, Run(), more=seconds)

    found = {span.phase: (span.start_s, span.end_s) for span in spans(assess(frames), frames)}

    assert list(found) == ["warmup", "measure", "rest"]
    assert found["warmup"] == pytest.approx((0, 10), abs=0.05)
    assert found["measure"] == pytest.approx((10, 19.5), abs=0.05)
    assert found["rest"] == pytest.approx((19.5, 20), abs=0.05)


def test_a_chart_names_power_limits_that_differ_and_one_that_does_not_once(tmp_path):
    boxes = [
        Gpu([(START_S - 100, 300)], index=str(index), limit_w=limit) for index, limit in enumerate((400, 400, 350))
    ]
    frames = frames_with(tmp_path, gpus=boxes)

    (power, *_) = charts(assess(frames), frames, frames.raw)

    assert [line.name for line in power.lines if line.kind == "limit"] == ["limit, GPU 0, GPU 1", "limit, GPU 2"]


def test_a_run_without_samples_still_has_a_page(tmp_path):
    frames = frames_with(tmp_path)
    nothing = frames.raw.iloc[:0]

    (power,) = charts(assess(frames), replace(frames, raw=nothing), nothing)

    assert power.lines == ()
    assert power.words == "No power samples of this run were found."


def test_every_table_has_as_many_cells_in_each_row_as_columns(tmp_path):
    report = report_of(tmp_path, Run(results={"loss": 0.5}, phases={"measure": (20.0, 6_000.0)}), intensity=230.0)

    shown = tables(report)

    assert {"Energy by device", "Power by device", "Phases", "Carbon by slot", "What the job measured"} <= {
        table.title for table in shown
    }
    for table in shown:
        assert {len(row) for row in (*table.rows, *table.totals)} == {len(table.columns)}


def test_no_text_can_end_the_data_of_the_page():
    hostile = "</script><!--<script>&amp;\u2028"

    text = str(_embedded({"name": hostile}))

    assert "<" not in text
    assert ">" not in text
    assert json.loads(text) == {"name": hostile}
