"""The report as one HTML file that needs nothing else, and that lets nothing else in.

The charts are Plotly's. Its script travels packed, which makes the page less than half as large; where a browser runs
no script, or cannot unpack it, the picture of the run stays. The page's own policy allows no request and no script
but the two that it holds, whatever a label says.
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

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analyzer.model.report import Report
from analyzer.model.samples import RunFrames
from analyzer.output import units
from analyzer.output.html import charts as page_charts
from analyzer.output.html import parts as page_parts
from analyzer.output.html import steps as page_steps
from analyzer.output.html import tables as page_tables
from analyzer.output.sections import summary as page_text

_LEVEL = 4


def page(report: Report, frames: RunFrames, sensors: pd.DataFrame, picture: bytes) -> str:
    """`sensors` is the frame of `analyzer.sources.runs.samples`, `picture` a PNG for readers without scripts."""
    environment = Environment(
        loader=PackageLoader("analyzer.output.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charts = page_charts.charts(report, frames, sensors)
    script, library = _own("report.js"), plotly()
    return environment.get_template("report.html.j2").render(
        report=report,
        units=units,
        text=page_text,
        charts=[(chart, page_tables.of_chart(chart)) for chart in charts],
        tables=page_tables.tables(report),
        picture=base64.b64encode(picture).decode(),
        data=_embedded(_data(report, charts, page_steps.spans(report, frames))),
        style=Markup(_own("report.css")),  # noqa: S704  # our own file
        script=Markup(script),  # noqa: S704  # our own file
        library=base64.b64encode(gzip.compress(library, _LEVEL, mtime=0)).decode(),
        policy=" ".join(f"'sha256-{_hash(text)}'" for text in (script.encode(), library)),
    )


@cache
def plotly() -> bytes:
    """Plotly's script as its package ships it; the package itself is slow to import."""
    found = find_spec("plotly")
    assert found is not None, "the analyzer needs plotly"
    assert found.origin is not None, "plotly is a package"
    return (Path(found.origin).parent / "package_data" / "plotly.min.js").read_bytes()


def _own(name: str) -> str:
    return (resources.files("analyzer.output.html") / "templates" / name).read_text(encoding="utf-8")


def _hash(script: bytes) -> str:
    return base64.b64encode(hashlib.sha256(script).digest()).decode()


def _embedded(data: Any) -> Markup:
    """JSON that no text in it can end: HTML sees no tag in it, and no comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704  # see above


def _data(report: Report, charts: Sequence[page_parts.Chart], spans: Sequence[page_steps.Span]) -> dict[str, Any]:
    return {
        "duration_s": round(report.duration_s, 3),
        "window_s": page_parts.window_s(report),
        "devices": [units.marked(device.label, device.estimated) for device in page_parts.shown(report)],
        "phases": [{"name": span.phase, "start_s": span.start_s, "end_s": span.end_s} for span in spans],
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
