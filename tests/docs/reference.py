"""Generated reference tables of the Markdown pages: `python -m tests.docs.reference`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from tests.calibration import devices, margins, shares, windows
from tests.calibration import table as coverage
from tests.docs import exit_codes, finding_codes, hardware_conventions, option_tables
from tests.exam import table
from tests.exporter.web import series_counts
from tests.fault_trials import kills
from tests.laboratory import classes, evidence, wave_figures, waves
from wattline.contract import metrics

ROOT = Path(__file__).resolve().parents[2]
METRICS_PAGE = ROOT / "exporter/docs/METRICS.md"
BLOCKS: dict[str, Callable[[], str]] = {
    **{
        f"{name} options": partial(option_tables.program_options, name)
        for name in option_tables.PROGRAMS
    },
    "analyzer options": partial(
        option_tables.program_options,
        "analyzer",
        without=option_tables.STUDY_COMMANDS + option_tables.SUM_COMMANDS,
    ),
    "analyzer study options": partial(
        option_tables.command_options, "analyzer", option_tables.STUDY_COMMANDS, "options.md"
    ),
    "analyzer usage options": partial(
        option_tables.command_options, "analyzer", option_tables.SUM_COMMANDS, "options.md"
    ),
    **{f"{name} exit codes": partial(exit_codes.table, name) for name in exit_codes.EXIT_CODES},
    "job options": option_tables.job_options,
    "finding codes": finding_codes.table,
    "examination results": table.summary_table,
    "examination cases": table.case_table,
    "examination meters": table.meter_table,
    "examination case meanings": table.meaning_table,
    "coverage": coverage.coverage_table,
    "ranks": coverage.rank_table,
    "margins": margins.margin_table,
    "power windows": windows.window_table,
    "devices of a job": devices.device_table,
    "hardware conventions": hardware_conventions.conventions_table,
    "share errors": shares.share_table,
    "kills": kills.markdown,
    "evidence studies": evidence.study_table,
    "evidence classes": classes.class_table,
    "evidence waves": waves.wave_table,
    "evidence updates": waves.update_table,
    "evidence wave figures": wave_figures.figure_table,
    "evidence faults": evidence.fault_table,
    "evidence unmeasured": evidence.unmeasured,
    "series counts": series_counts.count_table,
    "series of a fleet": series_counts.fleet_table,
}
_BLOCK = re.compile(
    r"(?P<start><!-- generated: (?P<name>[^>]+?) -->\n).*?(?P<end><!-- end -->)", re.DOTALL
)


def markdown_files() -> list[Path]:
    """Return every Markdown file of the repository, also those not committed yet."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(
        listed, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return [path for name in sorted(set(names)) if (path := ROOT / name).is_file()]


def generate_pages(text: str) -> str:
    """Return the page with every generated block up to date; raise KeyError for an unknown
    block.
    """
    return _BLOCK.sub(
        lambda block: f"{block['start']}\n{BLOCKS[block['name']]()}\n\n{block['end']}", text
    )


def pages_with_tables() -> list[Path]:
    """Return the pages that have generated parts."""
    return [*(path for path in markdown_files() if _BLOCK.search(path.read_text())), METRICS_PAGE]


@cache
def pages() -> dict[Path, str]:
    """Return the up-to-date text of each page that has generated parts."""
    return {
        path: metrics.markdown() if path == METRICS_PAGE else generate_pages(path.read_text())
        for path in pages_with_tables()
    }


def main() -> None:
    for path, text in pages().items():
        if path.read_text() != text:
            path.write_text(text)
            print(f"updated {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
