"""Every panel with Grafana's own data library: names, columns, values and units of its series."""

import re

import pytest

from grafana.charts import ResultSeries, rows
from tests.grafana import data_library
from tests.grafana.cluster import END_S, SERVE
from tests.grafana.panel_values import View
from tests.grafana.query import boards, panel, panels


@pytest.fixture(scope="module")
def shown(addresses):
    """Return each panel that has data, its answers and the library's result."""
    modules = data_library.install()
    view = View(addresses["prometheus"], END_S, chosen={"run": SERVE.run_id})
    asked = [(model, view.answers(model)) for board in boards().values() for model in panels(board)]
    asked = [(model, results) for model, results in asked if results]
    answers = data_library.show(modules, asked)
    return [
        (model, results, answer) for (model, results), answer in zip(asked, answers, strict=True)
    ]


def test_numbers_and_gauges_show_their_legends(shown):
    found = [
        (model, results, answer["figures"])
        for model, results, answer in shown
        if "figures" in answer
    ]

    assert len(found) > 10
    for model, results, figures in found:
        assert sorted(one["name"] for one in figures) == sorted(one.legend for one in results), (
            model["title"]
        )


def test_lines_have_distinct_names_and_the_values_of_their_legends(shown):
    found = [
        (model, results, answer["lines"]) for model, results, answer in shown if "lines" in answer
    ]

    assert len(found) > 30
    for model, results, lines in found:
        names = [line["name"] for line in lines]
        assert names == [one.legend for one in results], model["title"]
        assert len(set(names)) == len(names), model["title"]
        for line, one in zip(lines, results, strict=True):
            if "max" in line["calcs"]:
                assert line["calcs"]["max"]["value"] == pytest.approx(max(one.value), rel=1e-12), (
                    model["title"]
                )


def test_tables_have_the_columns_and_the_rows_of_the_pictures(shown):
    found = [(model, results, answer) for model, results, answer in shown if "columns" in answer]

    assert len(found) > 20
    for model, results, answer in found:
        columns, expected = rows(model, results)
        assert answer["frames"] == 1, model["title"]
        assert answer["columns"] == columns, model["title"]
        table = [
            {name: cell["value"] for name, cell in zip(columns, row, strict=True)}
            for row in answer["rows"]
        ]
        assert sorted(map(_cells, table)) == sorted(map(_cells, expected)), model["title"]


def test_units_are_known_to_grafana(shown):
    texts = []
    for model, _, answer in shown:
        cells = [cell["text"] for row in answer.get("rows", ()) for cell in row]
        figures = [one["text"] for one in answer.get("figures", ())]
        calcs = [
            calc["text"] for line in answer.get("lines", ()) for calc in line["calcs"].values()
        ]
        texts += [(model["title"], text) for text in (*cells, *figures, *calcs)]

    unit = re.compile(
        r"\d (watt|joule|kwatth|massg|percentunit|short|hertz|celsius|bytes|suffix)|  "
    )
    assert len(texts) > 500
    assert [each for each in texts if unit.search(each[1])] == []


def test_known_values_have_their_texts(shown):
    runs = next(
        answer for _, _, answer in shown if {"run", "emissions"} <= set(answer.get("columns", ()))
    )
    rows_shown = [dict(zip(runs["columns"], row, strict=True)) for row in runs["rows"]]
    (texts,) = (
        {n: cell["text"] for n, cell in row.items()}
        for row in rows_shown
        if row["run"]["value"] == SERVE.run_id
    )

    assert texts["energy, GPUs"] == "210 kJ"
    assert texts["duration"] == "10 mins"
    assert texts["emissions"] == "11.7 g"


def test_links_lead_to_other_dashboards(shown):
    links = {
        (model["title"], name): urls
        for model, _, answer in shown
        for name, urls in zip(answer.get("columns", ()), answer.get("links", ()), strict=True)
        if urls
    }

    assert set(links) >= {("Nodes with the highest power", "node"), ("Runs with idle GPUs", "run")}
    for urls in links.values():
        assert all(re.sub(r"\A/d/(wattline-\w+)\?.*", r"\1", url) in boards() for url in urls)


def test_number_above_its_threshold_is_orange():
    waste = panel("wattline-waste", "Throttled GPUs")
    values = [(waste, [ResultSeries("A", "GPUs", {}, [END_S], [value])]) for value in (0.0, 1.0)]
    low, high = data_library.show(data_library.install(), values)

    assert low["figures"][0]["color"] != high["figures"][0]["color"]
    assert high["figures"][0]["color"] == "#FF9830"


def _cells(row):
    """Return the cells of a row that have a value; a converted column has numbers for the texts of
    its label.
    """
    return sorted((name, _number(value)) for name, value in row.items() if value not in ("", None))


def _number(value):
    try:
        return (0, float(value), "")
    except ValueError:
        return (1, 0.0, value)
