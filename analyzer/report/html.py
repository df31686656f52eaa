"""The report as one HTML file that needs nothing else: no script, no font, no picture from outside."""

from __future__ import annotations

import base64

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from analyzer.measured import Report
from analyzer.report import plots, units
from analyzer.shares import POLICIES


def page(report: Report, power: pd.DataFrame) -> str:
    """`power` is the table of `timeseries`."""
    environment = Environment(
        loader=PackageLoader("analyzer.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pictures = {
        f"{'dark' if theme is plots.DARK else 'light'}_{'narrow' if narrow else 'wide'}": _data_uri(
            plots.picture(report, power, plots.Look(theme, narrow, titled=False), "svg")
        )
        for theme in (plots.LIGHT, plots.DARK)
        for narrow in (False, True)
    }
    return environment.get_template("report.html.j2").render(
        report=report, units=units, pictures=pictures, policies=POLICIES
    )


def _data_uri(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
