"""Tables of raw samples: times, values, and a text per label and sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wattline.contract.metrics import Metric
from wattline_analyzer.core.samples import FloatArray, Samples, Series, clean

Indexes = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
_METRIC = "metric"
_INSTANCE = "instance"
_ABSENT = -1
"""Code that no sample has."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sample with the labels that are not empty."""

    instance: str
    t: float
    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn:
    """Texts of all samples: the different `texts` in rising order, and the position of each
    sample's.
    """

    codes: npt.NDArray[np.signedinteger[Any]]
    texts: tuple[str, ...]

    @classmethod
    def repeated(cls, texts: Sequence[str], lengths: Sequence[int]) -> TextColumn:
        """Return a column with each text repeated."""
        known = tuple(sorted(set(texts)))
        codes = {text: code for code, text in enumerate(known)}
        return cls(
            np.repeat(np.array([codes[text] for text in texts], dtype=_code_type(known)), lengths),
            known,
        )

    @classmethod
    def joined(cls, columns: Sequence[TextColumn]) -> TextColumn:
        known = tuple(sorted({text for column in columns for text in column.texts}))
        codes = {text: code for code, text in enumerate(known)}
        tables = [
            np.array([codes[text] for text in column.texts], dtype=_code_type(known))
            for column in columns
        ]
        parts = [
            table[column.codes]
            for table, column in zip(tables, columns, strict=True)
            if len(column.codes)
        ]
        return cls(np.concatenate([np.empty(0, dtype=_code_type(known)), *parts]), known)

    def take(self, rows: Indexes) -> TextColumn:
        return TextColumn(self.codes[rows], self.texts)

    def equal(self, text: str) -> Mask:
        same: Mask = self.codes == (self.texts.index(text) if text in self.texts else _ABSENT)
        return same


def _code_type(known: Sequence[str]) -> type[np.signedinteger[Any]]:
    return np.int8 if len(known) < 128 else np.int32


class SampleTable:
    """Samples of several series, in any order: `t` in Unix seconds and `value` in the metric's
    unit, which is finite.

    Each sample has a text per label, empty where its series lacks the label; the metric's name is
    the label `metric`, and `instance` is empty where the source has only one. A table never
    changes. A part of a table takes the texts of a label from its whole when they are first needed.
    """

    def __init__(
        self,
        t: FloatArray,
        value: FloatArray,
        texts: Mapping[str, TextColumn],
        rows: Indexes | None = None,
    ) -> None:
        self.t = t
        self.value = value
        self._texts = texts
        self._rows = rows
        """Positions of the samples in the columns of `_texts`; None for all."""
        self._taken: dict[str, TextColumn] = {}
        self._of_metric: dict[str, Indexes] = {}
        self._newest: dict[str, list[Row]] = {}

    def __len__(self) -> int:
        return len(self.t)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels, with `metric` and `instance`."""
        return tuple(self._texts)

    def column(self, label: str) -> TextColumn:
        if label not in self._taken:
            known = self._texts.get(label)
            if known is None:
                self._taken[label] = TextColumn(np.zeros(len(self), dtype=np.int8), ("",))
            else:
                self._taken[label] = known if self._rows is None else known.take(self._rows)
        return self._taken[label]

    def texts(self, label: str) -> list[str]:
        """Return the text of each sample."""
        column = self.column(label)
        return [column.texts[code] for code in column.codes.tolist()]

    def distinct(self, label: str) -> list[str]:
        """Return the different texts in rising order."""
        column = self.column(label)
        return [column.texts[code] for code in np.flatnonzero(np.bincount(column.codes)).tolist()]

    def where(self, label: str, texts: Iterable[str]) -> Mask:
        """Return which samples have one of the texts."""
        column = self.column(label)
        found = np.zeros(len(self), dtype=bool)
        for text in texts:
            found |= column.equal(text)
        return found

    def take(self, chosen: Indexes | Mask) -> SampleTable:
        """Return the samples at these positions, in their order, or where the mask is true."""
        rows: Indexes = np.arange(len(self))[chosen]
        whole = rows if self._rows is None else self._rows[rows]
        return SampleTable(self.t[rows], self.value[rows], self._texts, whole)

    def of_instance(self, instance: str) -> SampleTable:
        """Return the same samples as those of another instance."""
        column = TextColumn(np.zeros(len(self), dtype=np.int8), (instance,))
        return SampleTable(
            self.t,
            self.value,
            {**{name: self.column(name) for name in self._texts}, _INSTANCE: column},
        )

    def groups(self, *labels: str) -> Iterator[tuple[tuple[str, ...], SampleTable]]:
        """Yield the samples of each combination of texts, in rising order of the texts."""
        if not len(self):
            return
        columns = [self.column(label) for label in labels]
        key = self._keys(columns)
        order = np.argsort(key, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
            yield tuple(column.texts[column.codes[rows[0]]] for column in columns), self.take(rows)

    def _keys(
        self, columns: Iterable[TextColumn], rows: Indexes | slice = slice(None)
    ) -> npt.NDArray[np.int64]:
        """Return a number per sample, equal for equal texts and rising with them."""
        key = np.zeros(len(self), dtype=np.int64)[rows]
        for column in columns:
            if len(column.texts) > 1:
                key = np.unique(key * len(column.texts) + column.codes[rows], return_inverse=True)[
                    1
                ]
        return key

    def positions(self, metric: Metric, labels: Mapping[str, str]) -> Indexes:
        """Return the positions of a metric's samples with these labels."""
        if metric.name not in self._of_metric:
            self._of_metric[metric.name] = np.flatnonzero(self.column(_METRIC).equal(metric.name))
        rows = self._of_metric[metric.name]
        for label, text in labels.items():
            column = self.column(label)
            rows = rows[column.take(rows).equal(text)]
        return rows

    def newest(self, metric: Metric) -> list[Row]:
        """Return the newest sample of each series of the metric, as `last` defines a series, in the
        order of time.
        """
        if metric.name not in self._newest:
            rows = self.positions(metric, {})
            rows = rows[np.argsort(self.t[rows], kind="stable")]
            key = self._keys([self.column(label) for label in (_INSTANCE, *metric.labels)], rows)
            finals = len(rows) - 1 - np.unique(key[::-1], return_index=True)[1]
            self._newest[metric.name] = self.take(rows[np.sort(finals)]).rows()
        return self._newest[metric.name]

    def rows(self) -> list[Row]:
        labels: list[dict[str, str]] = [{} for _ in range(len(self))]
        for name in self._texts if len(self) else ():
            if name not in (_METRIC, _INSTANCE):
                for own, text in zip(labels, self.texts(name), strict=True):
                    if text:
                        own[name] = text
        columns = self.texts(_INSTANCE), self.t.tolist(), self.value.tolist(), labels
        return [Row(*one) for one in zip(*columns, strict=True)]


def table_of(series: Iterable[Series]) -> SampleTable:
    """Return one table of many series, without samples that are not finite; the label `job` is left
    out.
    """
    parts = [_finite(one) for one in series]
    lengths = [len(t) for _, t, _ in parts]
    names = sorted(
        {name for labels, _, _ in parts for name in labels} - {"__name__", _INSTANCE, "job"}
    )
    texts = {
        name: TextColumn.repeated([labels.get(label, "") for labels, _, _ in parts], lengths)
        for name, label in [
            (_METRIC, "__name__"),
            (_INSTANCE, _INSTANCE),
            *((name, name) for name in names),
        ]
    }
    t, value = (np.concatenate([np.empty(0), *(one[column] for one in parts)]) for column in (1, 2))
    return SampleTable(t, value, texts)


def _finite(one: Series) -> Series:
    labels, t, value = one
    finite = np.isfinite(value)
    return one if finite.all() else (labels, t[finite], value[finite])


def join_tables(tables: Iterable[SampleTable]) -> SampleTable:
    """Return one table of the samples of all."""
    parts = [part for part in tables if len(part)]
    if len(parts) == 1:
        return parts[0]
    names = sorted({name for part in parts for name in part.labels} - {_METRIC, _INSTANCE})
    return SampleTable(
        np.concatenate([np.empty(0), *(part.t for part in parts)]),
        np.concatenate([np.empty(0), *(part.value for part in parts)]),
        {
            name: TextColumn.joined([part.column(name) for part in parts])
            for name in (_METRIC, _INSTANCE, *names)
        },
    )


def rows_of(table: SampleTable, metric: Metric, **labels: str) -> SampleTable:
    """Return the samples of one metric with these labels."""
    return table.take(table.positions(metric, labels))


def around(table: SampleTable, start_s: float, end_s: float) -> SampleTable:
    """Return the samples in [start_s, end_s], of the last scrape before it and of the first after
    it, by time.
    """
    t = table.t
    latest_s = t[t < start_s].max(initial=-np.inf)
    next_s = t[t > end_s].min(initial=np.inf)
    chosen = np.flatnonzero((t >= latest_s) & (t <= next_s))
    return table.take(chosen[np.argsort(t[chosen], kind="stable")])


def last(table: SampleTable, metric: Metric, **labels: str) -> list[Row]:
    """Return the newest sample of each series of the metric.

    A series is identified by instance and the metric's own labels, so that two jobs that scrape one
    exporter give one series.
    """
    assert {_INSTANCE, *metric.labels} >= labels.keys()
    return [
        row
        for row in table.newest(metric)
        if all(
            text == (row.instance if name == _INSTANCE else row.labels.get(name, ""))
            for name, text in labels.items()
        )
    ]


def samples(table: SampleTable, metric: Metric, **labels: str) -> Samples:
    """Return the series of a metric with these labels as one clean series, empty if there is
    none.
    """
    rows = table.positions(metric, labels)
    return clean(table.t[rows], table.value[rows])
