"""What a source of raw samples is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from analyzer.model.samples import Series
from exporter.contract.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd


class Source(Protocol):
    """Holds a connection until it is closed."""

    name: str
    """How it introduces itself, without credentials."""

    def fetch(
        self, metrics: Sequence[Metric], matchers: Mapping[str, str], start_s: float, end_s: float
    ) -> pd.DataFrame:
        """The raw samples in [start_s, end_s] as a tidy frame (see `analyzer.model.samples`). Raises SourceError."""

    def close(self) -> None: ...


@runtime_checkable
class PartedSource(Source, Protocol):
    """One that hands out a long stretch of time in parts, none of which is large."""

    def parts(
        self, metrics: Sequence[Metric], matchers: Mapping[str, str], start_s: float, end_s: float
    ) -> Iterator[list[Series]]:
        """In the order of time: every part is after all of the parts before it. Raises SourceError."""
