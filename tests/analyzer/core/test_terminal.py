"""Text of reports: tables on narrow terminals, units of columns, and rates."""

import io
import re

import pytest
from rich.console import Console
from rich.padding import Padding

from tests.analyzer.node import START_S, NodeGpu, NodeRun
from tests.analyzer.run_reports import run_frames, run_report, terminal_text
from wattline.figures import Figure, energy_text
from wattline_analyzer.core import units
from wattline_analyzer.core.devices import Calibration
from wattline_analyzer.core.run_report import Price, UserInputs
from wattline_analyzer.core.tables import Column, Table, figure_columns, text_cells, text_columns
from wattline_analyzer.core.terminal import TerminalTable, WithoutTrailingSpaces
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.sections.report import report_tables
from wattline_analyzer.report.terminal import terminal_report

COLUMNS = (
    Column("device", text=True, whole=True),
    *figure_columns("energy (95 %)", "from raw samples (bound)"),
    *text_columns("where it comes from", "by"),
)
ROWS = (
    (
        "gpu01:9847 GPU 0",
        "1,234.5678 ± 0.0005 kWh",
        "1,234.5 kWh (1,234.1 to 1,235.0)",
        "read between updates",
        "a",
    ),
    (
        "gpu01:9847 GPU 1",
        "–",
        "12.30 kWh (11.90 to 12.80)",
        "no sensor, so its energy is not known at all",
        "b",
    ),
)
TABLE = Table("", COLUMNS, [text_cells(row) for row in ROWS])
FIGURES = [
    part
    for row in ROWS
    for cell in row[1:3]
    if cell != "–"
    for part in cell.replace(" (", "\n(").split("\n")
]


@pytest.mark.parametrize("width", [140, 60, 30])
def test_lines_of_output_end_with_their_last_character(width):
    text = rendered(WithoutTrailingSpaces(TerminalTable(TABLE)), width)

    assert "gpu01:9847 GPU 0" in text
    assert [line for line in text.splitlines() if line.endswith(" ")] == []


def test_lines_without_trailing_spaces_are_the_same_lines():
    lines = rendered(TerminalTable(TABLE), 140).splitlines()

    stripped = rendered(WithoutTrailingSpaces(TerminalTable(TABLE)), 140).splitlines()

    assert stripped == [line.rstrip() for line in lines]
    assert any(line.endswith(" ") for line in lines)


def rendered(content, width):
    target = io.StringIO()
    Console(file=target, width=width, force_terminal=False, no_color=True, highlight=False).print(
        content
    )
    return target.getvalue()


@pytest.mark.parametrize("width", range(40, 141, 4))
def test_terminal_table_any_width_keeps_figures_whole(width):
    text = rendered(TerminalTable(TABLE), width)

    lines = text.splitlines()
    assert "…" not in text
    assert max(map(len, lines)) <= width
    for figure in FIGURES:
        assert any(figure in line for line in lines), figure
    words = " ".join(text.split())
    assert all(word in words for row in ROWS for word in row[3].split())


def test_terminal_table_wraps_text_before_blocks():
    wide, narrow, narrowest = (rendered(TerminalTable(TABLE), width) for width in (140, 84, 50))

    assert len(wide.splitlines()) == 3
    assert 3 < len(narrow.splitlines()) < 12
    assert any(line.startswith("device ") for line in narrow.splitlines()[:3])
    assert narrowest.splitlines()[0] == "gpu01:9847 GPU 0"
    assert "energy (95 %)" in narrowest.splitlines()[1]


def test_terminal_table_unlimited_width_is_not_padded():
    lines = rendered(
        Padding(TerminalTable(TABLE), (0, 0, 1, 0), expand=False), 100_000
    ).splitlines()

    assert max(map(len, lines)) < 150


def test_terminal_table_markup_stays_text():
    assert "[red]x" in rendered(
        TerminalTable(Table("", text_columns("run"), [text_cells(["[red]x"])])), 80
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Report of a GPU with 6,000 J and one with 60 J: 1.667 Wh and 0.01667 Wh."""
    gpus = [
        NodeGpu([(START_S - 1_000, idle_w), (START_S, busy_w), (START_S + 20, idle_w)], index=index)
        for index, idle_w, busy_w in (("0", 60, 300), ("1", 2, 3))
    ]
    run = NodeRun(
        phases={"load": (5.0, 300.0), "measure": (15.0, 5_700.0)},
        uncertainty_j=0.5,
        emissions_g=0.5,
    )
    frames = run_frames(tmp_path_factory.mktemp("history"), run, gpus=gpus, intensity=200.0)
    calibrations = (
        Calibration(gpus[0].uuid, 0.95, 0.0, 0.5, "power meter"),
        Calibration(gpus[1].uuid, 1.01, 0.0, None, ""),
    )
    return assess(frames, UserInputs(price=Price(0.31, "EUR"), calibrations=calibrations, pue=1.3))


@pytest.mark.parametrize("width", [60, 80, 100])
def test_terminal_report_narrow_width_has_all_figures(report, width):
    lines = rendered(terminal_report(report), width).splitlines()

    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    for figure in ("1.66667 ± 0.00014 Wh", "0.01667 ± 0.00014 Wh"):
        assert any(figure in line for line in lines), figure


def test_report_column_has_one_unit_in_terminal_and_page(report):
    console = rendered(terminal_report(report), 200)
    page = {table.title: table for table in report_tables(report)}

    assert re.search(r"^GPU 0 +1\.66667 ± 0\.00014 Wh", console, re.MULTILINE)
    assert re.search(r"^GPU 1 +0\.01667 ± 0\.00014 Wh", console, re.MULTILINE)
    assert re.search(r"^load .* 0\.08333 Wh *$", console, re.MULTILINE)
    assert re.search(r"^measure .* 1\.583 Wh *$", console, re.MULTILINE)
    for title, at in (
        ("Energy by device", 1),
        ("Energy by device", 3),
        ("Phases", 2),
        ("Calibrated energy", 1),
    ):
        rows_and_totals = [*page[title].rows, *page[title].totals]
        rows = [row for row in rows_and_totals if not row[0].text.startswith("per ")]
        assert {row[at].text.rpartition(" ")[2] for row in rows if not row[at].absent} == {"Wh"}, (
            title
        )


def test_energy_largest_chooses_unit_and_keeps_digits():
    assert energy_text(Figure(12.0, 0.5), 4e6) == "0.00000333 ± 0.00000014 kWh"
    assert units.largest([None, Figure(-5.0), 3.0]) == 5.0


def test_terminal_report_rates_name_their_period(tmp_path):
    """900 tokens: 60/s in the 15 s of measure, 45/s over all 20 s, and 61/s as reported by the
    job.
    """
    run = NodeRun(
        phases={"warmup": (5.0, 1_000.0), "measure": (15.0, 5_000.0)},
        phase_uncertainty_j=10.0,
        phase_work={"measure": {"generated_tokens": 900.0}},
        work={"generated_tokens": 900.0, "steps": 100.0},
        results={"tokens_per_second": 61.0},
    )
    text = terminal_text(run_report(tmp_path, run))

    assert "900 generated tokens, 60.00 generated tokens/s during the phase measure" in text
    assert "each unit is divided into the same energy" in text
    assert "5.6 ± 0.4 J per generated token during the phase measure" in text
    assert "100 steps, 5.000 steps/s over the whole run" in text
    assert "Units per second of the run" in text
    assert "45.00/s" in text
    assert re.search(r"tokens_per_second +61\.00", text)


@pytest.mark.parametrize(
    ("start_s", "end_s", "expected"),
    [
        (1_792_882_800, 1_792_886_400, "2026-10-25 01:00:00 to 02:00:00, UTC+02:00"),
        (1_792_890_000, 1_792_893_600, "2026-10-25 02:00:00 to 03:00:00, UTC+01:00"),
        (1_792_886_400, 1_792_890_000, "2026-10-25 02:00:00 UTC+02:00 to 02:00:00 UTC+01:00"),
        (1_774_744_200, 1_774_747_800, "2026-03-29 01:30:00 UTC+01:00 to 03:30:00 UTC+02:00"),
    ],
)
def test_span_across_change_of_clocks_has_both_offsets(local_zone, start_s, end_s, expected):
    local_zone("Europe/Berlin")

    assert units.span(start_s, end_s) == expected
