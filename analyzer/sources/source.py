"""What a source of raw samples is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pandas as pd

from exporter.contract.metrics import Metric


class Source(Protocol):
    """Holds a connection until it is closed."""

    name: str
    """How it introduces itself, without credentials."""

    def fetch(
        self, metrics: Sequence[Metric], matchers: Mapping[str, str], start_s: float, end_s: float
    ) -> pd.DataFrame:
        """The raw samples in [start_s, end_s] as a tidy frame (see `analyzer.series`). Raises SourceError."""

    def close(self) -> None: ...
