"""Series on disk while they come in by parts, so that memory holds one of them and not all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from analyzer.model.samples import Series, clean
from analyzer.sources.downsample import Key, key
from exporter.contract import metrics as m

_ORDER = {metric.name: place for place, metric in enumerate(m.METRICS)}


class Spool:
    """In `folder`, 16 bytes a sample. What two jobs scrape from one exporter is one series."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._labels: dict[Key, Mapping[str, str]] = {}
        self._paths: dict[Key, Path] = {}

    @property
    def label_names(self) -> list[str]:
        """Of all series, in order, but for their name; the instance comes first."""
        names = {name for labels in self._labels.values() for name in labels} - {"__name__"}
        return sorted(names, key=lambda name: (name != "instance", name))

    def add(self, part: Iterable[Series]) -> None:
        """Raises OSError."""
        for given, t, value in part:
            labels = {name: text for name, text in given.items() if text and name != "job"}
            if labels["__name__"] in _ORDER and len(t):
                path = self._paths.setdefault(key(labels), self._folder / str(len(self._paths)))
                self._labels.setdefault(key(labels), labels)
                with path.open("ab") as file:
                    file.write(np.column_stack((t, value)).tobytes())

    def series(self) -> Iterator[Series]:
        """One by one, in the contract's order of metrics and then by labels, sorted by time. Raises OSError."""
        for labels in sorted(self._labels.values(), key=_place):
            pairs = np.fromfile(self._paths[key(labels)], dtype=np.float64).reshape(-1, 2)
            cleaned = clean(pairs[:, 0], pairs[:, 1])
            if len(cleaned):
                yield labels, cleaned.t, cleaned.value


def _place(labels: Mapping[str, str]) -> tuple[int, list[tuple[str, str]]]:
    return _ORDER[labels["__name__"]], sorted(labels.items())
