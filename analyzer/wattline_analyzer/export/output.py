"""Raw samples for other programs, as OpenMetrics, CSV and Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric, escape
from wattline_analyzer.core.samples import Series

if TYPE_CHECKING:
    import pandas as pd

_METRICS = {metric.name: metric for metric in m.METRICS}
_LINES = 50_000
"""Lines per part of text."""
_ROWS = 500_000
"""Rows per data frame of an export."""


def openmetrics(series: Iterable[Series]) -> Iterator[str]:
    """Yield OpenMetrics text; the series of a metric must be adjacent.

    https://prometheus.io/docs/specs/om/open_metrics_spec/
    """
    before = ""
    for labels, t, value in series:
        name = labels["__name__"]
        if name != before:
            yield _head(_METRICS[name])
        before = name
        own = sorted(
            (label, text) for label, text in labels.items() if label != "__name__" and text
        )
        inner = ",".join(f'{label}="{escape(text)}"' for label, text in own)
        start = f"{name}{{{inner}}}" if inner else name
        for times, values in _pieces(t.tolist(), value.tolist()):
            yield "".join(
                f"{start} {x!r} {t_s:.3f}\n" for t_s, x in zip(times, values, strict=True)
            )
    yield "# EOF\n"


def _head(metric: Metric) -> str:
    """Return HELP and TYPE; the family of a counter has no `_total`."""
    family = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
    return f"# HELP {family} {escape(metric.help)}\n# TYPE {family} {metric.kind}\n"


def _pieces(times: list[float], values: list[float]) -> Iterator[tuple[list[float], list[float]]]:
    for at in range(0, len(times), _LINES):
        yield times[at : at + _LINES], values[at : at + _LINES]


def samples_csv(series: Iterable[Series], names: Sequence[str]) -> Iterator[str]:
    """Yield CSV text in long form: `t` (Unix seconds), `metric`, `value` and a column per label."""
    yield ",".join(["t", "metric", "value", *names]) + "\n"
    for frame in _frames(series, names):
        yield frame.to_csv(index=False, header=False)


def write_parquet(path: Path, series: Iterable[Series], names: Sequence[str]) -> None:
    """Write the columns of the CSV. Raises OSError."""
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import parquet

    texts = [(name, pa.string()) for name in names]
    schema = pa.schema(
        [("t", pa.float64()), ("metric", pa.string()), ("value", pa.float64()), *texts]
    )
    with parquet.ParquetWriter(path, schema) as writer:
        for frame in _frames(series, names):
            writer.write_table(pa.Table.from_pandas(frame, schema, preserve_index=False))


def _frames(series: Iterable[Series], names: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Yield data frames with the columns of the CSV, of about _ROWS rows each."""
    import pandas as pd

    pending: list[pd.DataFrame] = []
    for labels, t, value in series:
        texts = {name: labels.get(name, "") for name in names}
        pending.append(
            pd.DataFrame({"t": t, "metric": labels["__name__"], "value": value, **texts})
        )
        if sum(map(len, pending)) >= _ROWS:
            yield pd.concat(pending)
            pending = []
    if pending:
        yield pd.concat(pending)
