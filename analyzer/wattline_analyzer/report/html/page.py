"""Report as one self-contained HTML file.

Plotly's script is embedded compressed, which halves the size of the page. Browsers that run no
scripts, or cannot decompress it, show the plot as an image. The page's content security policy
allows its own two scripts and no request.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from wattline import figures
from wattline_analyzer.core import units
from wattline_analyzer.core.phases import PhaseSpan
from wattline_analyzer.core.recorded_run import RecordedRun
from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.sample_table import SampleTable
from wattline_analyzer.report.chart import Chart, legend_devices, time_window_s
from wattline_analyzer.report.html.charts import chart_table, report_charts
from wattline_analyzer.report.html.step_charts import phase_spans
from wattline_analyzer.report.sections.report import (
    LEVELS,
    count_findings,
    report_tables,
    summary_sentences,
)

_LEVEL = 4


def html_page(report: Report, recorded: RecordedRun, sensors: SampleTable, plot_png: bytes) -> str:
    """Return the page. `sensors` is the table of `wattline_analyzer.core.runs.samples`."""
    charts = report_charts(report, recorded, sensors)
    script = _template_file("report.js")
    library = plotly_script()
    return page_template("report.html.j2").render(
        report=report,
        figures=figures,
        units=units,
        levels=LEVELS,
        summary_sentences=summary_sentences,
        count_findings=count_findings,
        charts=[(chart, chart_table(chart)) for chart in charts],
        tables=report_tables(report),
        plot=base64.b64encode(plot_png).decode(),
        data=_embedded(_data(report, charts, phase_spans(report, recorded))),
        style=page_style(),
        script=Markup(script),  # noqa: S704  # part of this package
        library=base64.b64encode(gzip.compress(library, _LEVEL, mtime=0)).decode(),
        policy=" ".join(f"'sha256-{_hash(text)}'" for text in (script.encode(), library)),
    )


def page_template(name: str) -> Template:
    """Return a template of this package."""
    environment = Environment(
        loader=PackageLoader("wattline_analyzer.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def page_style() -> Markup:
    """Return the style sheet of all pages."""
    return Markup(_template_file("report.css"))  # noqa: S704  # part of this package


@cache
def plotly_script() -> bytes:
    """Return the script from Plotly's package, without the slow import of the package."""
    package = find_spec("plotly")
    assert package is not None, "the analyzer needs plotly"
    assert package.origin is not None, "plotly is a package"
    return (Path(package.origin).parent / "package_data" / "plotly.min.js").read_bytes()


def _template_file(name: str) -> str:
    return (resources.files("wattline_analyzer.report.html") / "templates" / name).read_text(
        encoding="utf-8"
    )


def _hash(script: bytes) -> str:
    return base64.b64encode(hashlib.sha256(script).digest()).decode()


def _embedded(data: Any) -> Markup:
    """Return JSON in which no text can open or close an HTML tag or comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704  # see above


def _data(report: Report, charts: Sequence[Chart], spans: Sequence[PhaseSpan]) -> dict[str, Any]:
    return {
        "duration_s": round(report.duration_s, 3),
        "window_s": time_window_s(report),
        "devices": [
            units.marked(device.label, device.estimated) for device in legend_devices(report)
        ],
        "phases": [
            {"name": span.phase, "start_s": span.start_s, "end_s": span.end_s} for span in spans
        ],
        "charts": [
            {
                "key": chart.key,
                "unit": chart.unit,
                "lines": [
                    {
                        "name": line.name,
                        "kind": line.kind,
                        "device": line.device,
                        "t": line.points[0],
                        "value": line.points[1],
                    }
                    for line in chart.lines
                ],
            }
            for chart in charts
        ],
    }
