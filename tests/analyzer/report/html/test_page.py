"""The report's page in a real Chromium, opened as a file."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from tests.analyzer.report.html.sample_page import HOSTILE, write_page
from tests.browser import Page, browser

KEYS = ["power", "temperature", "clocks", "utilization", "memory", "carbon"]
SHOWN = "const charts = [...document.querySelectorAll('.chart')]"
RANGES = (
    f"(() => {{ {SHOWN}; return charts.map(chart => chart.layout.xaxis.range.map(Number)); }})()"
)
DEVICES = (
    "[...document.querySelector('#table-1').closest('table').tBodies[0].rows].map(row => "
    "row.cells[0].innerText)"
)
AS_OPENED = """
document.querySelectorAll(".legend [aria-pressed=false]").forEach(chip => chip.click());
(span => { span.value = "all"; span.dispatchEvent(new Event("change")); })(document.querySelector("#span"));
document.querySelectorAll("thead th:first-child:not([aria-sort=ascending]) button").forEach(button => button.click());
scrollTo(0, 0);
"""
SORTS = "document.querySelector('#table-1').closest('table').querySelector('thead th:nth-child(2)')"


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    return write_page(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(scope="module")
def opened(chromium, file):
    page = Page(chromium)
    page.emulate()
    page.open(file)
    return page


@pytest.fixture
def tab(opened):
    """Page at desktop width, reset before each test."""
    yield opened
    opened.emulate()
    opened.value(AS_OPENED)
    opened.wait("document.querySelectorAll('#chart-power .scatterlayer .trace').length === 4")
    assert opened.problems == []
    assert opened.requests == []


def box(tab, chart):
    """Return the rectangle of a chart's plot in the window."""
    tab.value(f"document.querySelector('#chart-{chart}').scrollIntoView({{block: 'center'}})")
    place = f"document.querySelector('#chart-{chart} .nsewdrag').getBoundingClientRect()"
    return tab.value(f"(({{left, top, width, height}}) => ({{left, top, width, height}}))({place})")


def lines(tab, chart):
    return tab.value(
        f"document.querySelector('#chart-{chart} .chart').data"
        ".map(({name, x, y, visible, line}) => ({name, x: [...x], y: [...y], visible, dash: "
        "line.dash}))"
    )


def test_page_draws_every_chart_with_measured_values(tab):
    assert tab.value("[...document.querySelectorAll('.live figure')].map(one => one.id)") == [
        f"chart-{k}" for k in KEYS
    ]
    assert tab.value("document.documentElement.dataset.charts") == "drawn"
    assert (
        tab.value("document.querySelectorAll('#chart-power .scatterlayer .trace').length") == 4
    )  # 3 GPUs and a limit
    first, second, third, limit = lines(tab, "power")
    assert [line["name"] for line in (first, second, third, limit)] == [
        "GPU 0",
        "GPU 1",
        "GPU 2",
        "power limit",
    ]
    in_run = {y for x, y in zip(first["x"], first["y"], strict=True) if 0 < x < 20}
    assert in_run == {300, None}  # None is the gap
    assert {y for y in limit["y"] if y is not None} == {400, 350}
    assert limit["dash"] == "dash"
    assert {line["name"] for line in lines(tab, "clocks")} == {
        f"GPU {n}, {d}" for n in range(3) for d in ("SM", "memory")
    }
    assert max(lines(tab, "clocks")[0]["y"], key=lambda y: y or 0) == 1_980
    assert max(lines(tab, "memory")[0]["y"], key=lambda y: y or 0) == 64
    assert set(lines(tab, "carbon")[0]["y"]) == {230}


def test_chart_gap_has_no_line(tab):
    line = lines(tab, "power")[0]

    gap = line["y"].index(None)

    assert line["x"][gap - 1] == 8
    assert line["x"][gap + 1] == 12
    assert line["y"].count(None) == 1


def test_page_summary_has_figures_with_intervals(tab):
    lead = tab.value("document.querySelector('.lead').innerText")

    # 12,000 J ± 30 J (10 J each) are 3.333 ± 0.008 Wh, and ± 0.21 Wh with the sensors; 1,000 tokens
    assert "used 3.33 ± 0.21 Wh on 3 GPUs in 20.00 s" in lead
    assert (
        "(random error ± 0.008 Wh (0.25 %), 95 % CI; sensor accuracy -0.097 to +0.21 Wh (6.4 %))"
        in lead
    )
    assert "12.0 ± 0.8 J per generated token, at 50.00 generated tokens/s" in lead


def test_table_sorts_by_value_and_keeps_totals_last(tab):
    assert tab.value(DEVICES) == ["GPU 0", "GPU 1", "GPU 2"]

    tab.value(f"{SORTS}.querySelector('button').click()")

    assert tab.value(DEVICES) == ["GPU 1", "GPU 2", "GPU 0"]  # 2,000 J, 1.111 Wh, 1.667 Wh
    assert tab.value(f"{SORTS}.ariaSort") == "ascending"
    assert tab.value(
        "document.querySelector('#table-1').closest('table').tFoot.innerText"
    ).startswith("GPU, total")


def test_table_keyboard_sorts_rows(tab):
    tab.value(f"{SORTS}.querySelector('button').focus()")
    for expected in (["GPU 1", "GPU 2", "GPU 0"], ["GPU 0", "GPU 2", "GPU 1"]):
        tab.press("Enter")
        tab.wait(f"JSON.stringify({DEVICES}) === JSON.stringify({expected})")

    assert tab.value(f"{SORTS}.ariaSort") == "descending"
    tab.press("Tab")
    assert tab.value("document.activeElement.closest('th').cellIndex") == 2


def test_zoom_in_one_chart_moves_all_charts(tab):
    place = box(tab, "power")
    before = tab.value(RANGES)
    middle = place["top"] + place["height"] / 2
    tab.drag(
        (place["left"] + place["width"] / 4, middle), (place["left"] + place["width"] / 2, middle)
    )

    tab.wait(f"{RANGES}[5][1] < {before[5][1]}")

    after = tab.value(RANGES)
    span = before[0][1] - before[0][0]
    for start, end in after:
        assert start == pytest.approx(before[0][0] + span / 4, abs=span / 50)
        assert end == pytest.approx(before[0][0] + span / 2, abs=span / 50)


def test_keyboard_zooms_to_a_phase(tab):
    names = tab.value("[...document.querySelector('#span').options].map(one => one.text)")
    assert names[:4] == ["all", "the run", f"phase {HOSTILE}", "phase measure"]

    tab.value(
        "(c => { c.value = 'phase-1'; c.dispatchEvent(new Event('change')); "
        "})(document.querySelector('#span'))"
    )
    assert [[round(edge, 1) for edge in one] for one in tab.value(RANGES)] == [[5, 20]] * 6
    tab.value("document.querySelector('[data-move=in]').focus()")
    tab.press("Enter")
    tab.wait(f"{RANGES}[0][0] > 8")

    assert [[round(edge, 2) for edge in one] for one in tab.value(RANGES)] == [[8.75, 16.25]] * 6
    assert tab.value("document.querySelector('#shown').textContent") == "8.8 to 16.3 s"


def test_legend_hides_a_gpu_in_all_charts(tab):
    tab.value("document.querySelectorAll('.legend button')[1].click()")

    tab.wait("document.querySelectorAll('#chart-power .scatterlayer .trace').length === 3")

    assert [line["visible"] for line in lines(tab, "power")] == [True, False, True, True]
    assert [line["visible"] for line in lines(tab, "clocks")] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]
    assert tab.value(
        "[...document.querySelectorAll('.legend button')].map(one => one.ariaPressed)"
    ) == [
        *("true", "false", "true"),
        None,  # all or none
    ]


def test_hover_shows_values(tab):
    place = box(tab, "power")
    tab.move(place["left"] + place["width"] / 3, place["top"] + place["height"] / 2)

    tab.wait("document.querySelector('#chart-power .hoverlayer').textContent.includes('300 W')")

    assert "GPU 1 : 100 W" in tab.value(
        "document.querySelector('#chart-power .hoverlayer').textContent"
    )


def test_page_hostile_label_stays_text(tab):
    assert tab.value("window.hostile") is None
    assert tab.value("document.images.length") == 1
    assert tab.value("document.querySelector('.labels').textContent.trim()") == f"model {HOSTILE}"
    assert HOSTILE in tab.value("document.querySelector('header').textContent")
    traces = tab.value(
        "[...document.querySelectorAll('#chart-power .annotation-text')].map(one => "
        "one.textContent)"
    )
    assert traces[-1] == "measure"
    assert traces[0].startswith("</script><script>"[:10])


@pytest.mark.parametrize(
    ("width", "dark"), [(360, True), (360, False), (1280, True), (1280, False)]
)
def test_page_fits_window_width_and_colour_scheme(tab, width, dark):
    paper = "rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)"
    chart = "document.querySelector('#chart-power .main-svg')"

    tab.emulate(width, dark=dark)

    tab.wait(f"innerWidth === {width} && {chart}.getBoundingClientRect().right <= {width}")
    tab.wait(f"getComputedStyle({chart}).backgroundColor === '{paper}'")
    assert tab.value("getComputedStyle(document.body).backgroundColor") == paper
    assert tab.value("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("width", "dark"), [(360, True), (1280, False)])
def test_page_has_no_accessibility_violations(tab, width, dark):
    tab.emulate(width, dark=dark)
    tab.wait(f"innerWidth === {width}")

    assert _axe(tab) == []


def test_page_without_scripts_shows_tables_and_plot(chromium, file):
    page = Page(chromium)
    page.emulate(scripts=False)
    page.open(file, ready="document.querySelector('footer')")

    assert page.value("document.documentElement.dataset.charts") is None
    text = page.value("document.body.innerText")
    assert "3.33 ± 0.21 Wh" in text
    assert "Minimum, median, maximum" not in text  # part of the charts
    assert page.value("document.querySelector('.live').hidden")
    assert page.value("document.querySelector('.picture img').getBoundingClientRect().height") > 200
    assert page.value("document.querySelector('.picture img').naturalWidth") > 1_000
    assert "GPU 1" in page.value("document.querySelector('#table-1').closest('table').innerText")
    assert page.value("document.querySelectorAll('thead button').length") == 0
    page.close()


def test_page_without_decompression_shows_plot(chromium, file):
    page = Page(chromium)
    page.emulate()
    page.send("Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
    page.open(file)

    assert page.value("document.documentElement.dataset.charts") == "failed"
    assert page.value("document.querySelector('.picture').hidden") is False
    assert page.value("document.querySelector('.live').hidden")
    page.close()


def test_page_print_hides_controls_and_uses_light_colours(tab):
    tab.emulate(dark=True)
    tab.wait(
        "getComputedStyle(document.querySelector('#chart-power .main-svg')).backgroundColor === "
        "'rgb(20, 23, 27)'"
    )
    tab.value(
        "addEventListener('beforeprint', () => { const svg = document.querySelector('#chart-power "
        ".main-svg');"
        "const ink = svg.querySelector('.xtick text').style.fill;"
        "window.seen = [getComputedStyle(svg).backgroundColor, svg.clientWidth, ink]; }, {once: "
        "true})"
    )

    assert tab.pdf().startswith(b"%PDF")

    assert tab.value("window.seen") == ["rgb(255, 255, 255)", 680, "rgb(93, 102, 112)"]
    tab.wait(
        "getComputedStyle(document.querySelector('#chart-power .main-svg')).backgroundColor === "
        "'rgb(20, 23, 27)'"
    )
    tab.emulate(print_=True)
    hidden = [".controls", ".skip", "details"]
    assert (
        tab.value(f"{hidden}.map(one => getComputedStyle(document.querySelector(one)).display)")
        == ["none"] * 3
    )
    assert tab.value("getComputedStyle(document.querySelector('.key')).display") == "flex"
    assert tab.value("getComputedStyle(document.querySelector('table')).breakInside") == "avoid"


def test_page_charts_have_text_alternatives_and_ordered_headings(tab):
    texts = tab.value(
        "[...document.querySelectorAll('.chart')].map(one => [one.role, one.ariaLabel])"
    )

    assert [role for role, _ in texts] == ["img"] * 6
    assert (
        texts[0][1]
        == "Power of 3 devices over 20.00 s: from 60.00 to 300.0 W. Power limit: 400.0, then 350.0 "
        "W."
    )
    assert texts[5][1].startswith("Carbon intensity of 1 slot")
    levels = tab.value(
        "[...document.querySelectorAll('h1, h2, h3')].map(one => Number(one.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    assert tab.value(
        "[...document.querySelectorAll('table')].every(table => table.caption.textContent.length > "
        "3)"
    )
    assert tab.value(
        "[...document.querySelectorAll('th')].every(one => ['col', 'row'].includes(one.scope))"
    )


def _axe(page) -> list[str]:
    """Return the violations found by axe-core, best practices included."""
    spec = find_spec("axe_core_python")
    assert spec is not None, "pip install --group test"
    assert spec.origin is not None
    page.value(f"{(Path(spec.origin).parent / 'axe.min.js').read_text()}; 0")
    page.value(
        "document.querySelectorAll('.scroll').forEach(one => one.style.background = 'none')"
    )  # a shadow at most
    result = page.value("axe.run()")
    assert "color-contrast" in {one["id"] for one in result["passes"]}
    page.value("document.querySelectorAll('.scroll').forEach(one => one.style.background = '')")
    return [
        f"{one['id']}: {node['html'][:200]}"
        for one in result["violations"]
        for node in one["nodes"]
    ]
