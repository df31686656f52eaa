"""Pictures of the dashboards: drawn values against the servers' results, in the panels' units."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure

from grafana import pictures
from grafana.amount import amount
from grafana.charts import COLORS, ResultSeries, Times, draw, rows
from grafana.pictures import BoardView, picture
from tests import daemon
from tests.grafana.cluster import END_S, SERVE
from tests.grafana.query import CHOSEN, boards, panel, panels


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (210_000, "joule", "210 kJ"),
        (0.5556, "joule", "556 mJ"),
        (1_018_000, "joule", "1.02 MJ"),
        (0, "watt", "0 W"),
        (0.297, "percentunit", "29.7 %"),
        (600, "s", "10 min"),
        (0.0111, "s", "11.1 ms"),
        (11.67, "massg", "11.7 g"),
        (60e9, "bytes", "55.9 GiB"),
        (0.122, "kwatth", "122 Wh"),
        (200, "suffix:g/kWh", "200 g/kWh"),
        (64.5, "celsius", "64.5 °C"),
        (1_789_034_400_000, "dateTimeAsIso", "2026-09-10 10:00:00"),
        (378_000, "short", "378 k"),
        (float("nan"), "watt", "–"),
    ],
)
def test_amount_is_formatted_in_its_unit_with_three_digits(value, unit, text):
    assert amount(value, unit) == text


def test_pictures_of_an_exporter_end_with_one_line(tmp_path):
    remedy = r"cannot query .*HTTP Error 400.*; give the address of a Prometheus"
    with (
        daemon.daemon(tmp_path, "--simulate", "1xH200") as exporter,
        pytest.raises(SystemExit, match=remedy) as end,
    ):
        pictures.main([exporter.url, "--out", str(tmp_path / "pictures")])

    assert "\n" not in str(end.value)


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "localhost"])
def test_pictures_of_no_server_end_with_one_line(address, tmp_path):
    with pytest.raises(SystemExit, match=f"cannot query {address}: "):
        pictures.main([address, "--out", str(tmp_path)])


def test_number_is_orange_from_its_threshold_on():
    waste = panel("wattline-waste", "Throttled GPUs")
    colors = []
    for value in (0.0, 1.0):
        axes = Figure().add_subplot()
        draw(
            axes,
            waste,
            [ResultSeries("A", "GPUs", {}, [END_S], [value])],
            Times(END_S - 60, END_S, []),
        )
        colors.append(axes.texts[0].get_color())

    assert colors == [COLORS[2], "#dd7700"]


def test_rows_of_several_queries_are_joined_by_run():
    table = panel("wattline-runs", "Runs")
    labels = {"run_id": "one", "workload": "train"}
    answers = [
        ResultSeries(ref, "", labels, [0.0], [value])
        for ref, value in (("A", 3_000.0), ("B", 10.0))
    ]

    columns, found = rows(table, answers)

    assert columns == ["run", "workload", "duration", "energy, GPUs"]
    assert found == [{"run": "one", "workload": "train", "duration": 10.0, "energy, GPUs": 3_000.0}]


def test_picture_shows_the_values_of_the_server(addresses):
    view = BoardView(addresses["prometheus"], END_S + 30, 3_600, CHOSEN | {"run": SERVE.run_id})
    drawn = {uid: picture(boards()[uid], view) for uid in ("wattline-runs", "wattline-sweep")}

    texts = {text.get_text() for axes in drawn["wattline-runs"].axes for text in axes.texts}
    assert {"serve-1", "210 kJ", "500 mJ", "10 min", "11.7 g"} <= texts
    assert f"Run {SERVE.run_id}" in {text.get_text() for text in drawn["wattline-runs"].texts}
    (line,) = drawn["wattline-sweep"].axes[0].get_lines()
    points = dict(np.column_stack(line.get_data()).tolist())
    assert points == pytest.approx({300.0: 5.8, 400.0: 4.05, 500.0: 4.5})


def test_picture_without_data_shows_the_remedies(addresses):
    view = BoardView(addresses["prometheus"], 1_000_000_000, 86_400, CHOSEN | {"run": "none"})

    for uid in ("wattline-carbon", "wattline-fleet"):
        drawn = picture(boards()[uid], view)
        drawn.savefig(io.BytesIO())
        texts = {" ".join(text.get_text().split()) for axes in drawn.axes for text in axes.texts}
        assert texts == {
            each["fieldConfig"]["defaults"]["noValue"] for each in panels(boards()[uid])
        }
