"""What a command that looks at many runs shows: tables and sentences for people, a document and rows for machines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from analyzer.output import documents as formats
from analyzer.output.form import Format
from analyzer.output.sections import run as tables
from analyzer.output.terminal import Sheet
from analyzer.studies.spread import Estimate


@dataclass(frozen=True, slots=True)
class Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class View:
    """`parts` are sentences and tables in their order; `rows` is the CSV's."""

    parts: Sequence[str | Table]
    document: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]


def show(view: View, form: Format) -> None:
    """On stdout."""
    if form is Format.TABLE:
        parts = (Padding(_rendered(part), (0, 0, 1, 0), expand=False) for part in view.parts)
        tables.console(plain_columns=tables.UNLIMITED_COLUMNS).print(Group(*parts))
    elif form is Format.CSV:
        print(formats.rows_csv([dict(row) for row in view.rows]))
    else:
        write = formats.as_json if form is Format.JSON else formats.as_yaml
        print(write(finite(view.document)))


def estimate(found: Estimate | None, name: str) -> dict[str, float | int | None]:
    """With stable keys; null where it is not known."""
    return {
        name: found.value if found else None,
        f"{name}_low": found.low if found else None,
        f"{name}_high": found.high if found else None,
    }


def finite(data: Any) -> Any:
    """NaN is no number to a reader of JSON: null."""
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def with_interval(found: Estimate | None, scale: float = 1.0, unit: str = "") -> str:
    """`8.74 % (7.6 to 9.7)`; a dash where it is not known."""
    if found is None or not math.isfinite(found.value):
        return "–"
    value = f"{scale * found.value:.4g}{unit}"
    if found.low is None or found.high is None:
        return value
    return f"{value} ({scale * found.low:.3g} to {scale * found.high:.3g})"


def _rendered(part: str | Table) -> RenderableType:
    return Text(part) if isinstance(part, str) else Sheet(part.columns, part.rows, left=range(len(part.columns)))
