"""Raw samples for other programs: OpenMetrics, which Prometheus and VictoriaMetrics import, CSV and Parquet."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from exporter.contract import metrics as m
from exporter.contract.metrics import Metric, escape

_FIXED = ("t", "value", "metric")


def openmetrics(frame: pd.DataFrame) -> Iterator[str]:
    """The tidy frame as OpenMetrics text in parts: families in the contract's order, series one by one.

    https://prometheus.io/docs/specs/om/open_metrics_spec/
    """
    by_name = dict(list(frame.groupby("metric", sort=False)))
    for metric in m.METRICS:
        if metric.name in by_name:
            yield _head(metric)
            yield from _series(metric, by_name[metric.name])
    yield "# EOF\n"


def _head(metric: Metric) -> str:
    """A counter's family is named without `_total`."""
    family = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
    return f"# HELP {family} {escape(metric.help)}\n# TYPE {family} {metric.kind}\n"


def _series(metric: Metric, rows: pd.DataFrame) -> Iterator[str]:
    names = [name for name in rows.columns if name not in _FIXED and (rows[name] != "").any()]
    groups = rows.groupby(names, sort=True, dropna=False) if names else [((), rows)]
    for texts, series in groups:
        labels = dict(zip(names, texts, strict=True))
        inner = ",".join(f'{name}="{escape(str(text))}"' for name, text in labels.items() if text)
        start = f"{metric.name}{{{inner}}}" if inner else metric.name
        ordered = series.sort_values("t", kind="stable").drop_duplicates("t")
        pairs = zip(ordered["t"].tolist(), ordered["value"].tolist(), strict=True)
        yield "".join(f"{start} {value!r} {t_s:.3f}\n" for t_s, value in pairs)


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """Long: `t` (Unix seconds), `metric`, `value`, `instance`, and a column for each label that is used."""
    texts = [name for name in frame.columns if name not in _FIXED and (frame[name] != "").any()]
    chosen = frame[["t", "metric", "value", *texts]]
    return chosen.sort_values(["metric", *texts, "t"], kind="stable").reset_index(drop=True)
