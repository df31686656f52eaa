"""The samples of the last seconds, in one request a node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analyzer.live.watch import USUAL_INTERVAL_S, WATCHED
from analyzer.model.samples import joined, last
from analyzer.sources.base import Source
from analyzer.sources.error import SourceError
from analyzer.sources.runs.runs import AHEAD_S
from exporter.contract import metrics as m

MOST_NODES = 8
_LOOK_BACK_S = 180.0
_NAMED = 5


def nodes(source: Source, now_s: float, node: str | None, run_id: str | None) -> dict[str, float]:
    """The instances to watch, each with the interval of its scrapes in seconds.

    Raises SourceError where none was scraped in the last minutes, or there are more than a terminal can show.
    """
    frame = source.fetch([m.BUILD_INFO], {}, now_s - _LOOK_BACK_S, now_s + AHEAD_S)
    every = {str(instance): _interval_s(rows) for instance, rows in frame.groupby("instance")}
    if not every:
        raise SourceError(
            f"no node was scraped by {source.name} in the last {_LOOK_BACK_S / 60:.0f} min",
            "is its exporter running, and the clock here right? see on the node: exporter check",
        )
    chosen = set(every)
    if run_id is not None:
        rows = last(source.fetch([m.RUN_START], {"run_id": run_id}, now_s - _LOOK_BACK_S, now_s + AHEAD_S), m.RUN_START)
        chosen &= {row.instance for row in rows}
        if not chosen:
            raise SourceError(
                f"no run {run_id!r} is on at {source.name}", "see: analyzer runs, and for an ended run: analyzer report"
            )
    if node is not None:
        chosen = {one for one in chosen if node in (one, one.rpartition(":")[0])}
    if not chosen:
        raise SourceError(f"no node {node!r} at {source.name}", _nodes_there(sorted(every)))
    if len(chosen) > MOST_NODES:
        raise SourceError(
            f"{source.name} has {len(chosen)} nodes: {_some(sorted(chosen))}", "name the one to watch with --node"
        )
    return {one: every[one] for one in sorted(chosen)}


def _interval_s(rows: pd.DataFrame) -> float:
    times = np.unique(rows["t"].to_numpy(dtype=np.float64))[-10:]
    return float(np.median(np.diff(times))) if len(times) > 1 else USUAL_INTERVAL_S


def _nodes_there(names: Sequence[str]) -> str:
    """An exporter and its history have no name for the one node that they are of."""
    return f"there are {_some(names)}" if any(names) else "it is of one node alone: leave out --node"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def latest(source: Source, instances: dict[str, float], now_s: float) -> pd.DataFrame:
    """Raw samples of some scrapes back, as one tidy frame; `instances` are those of `nodes`. Raises SourceError."""
    parts = []
    for instance, interval_s in instances.items():
        where = {"instance": instance} if instance else {}
        parts.append(source.fetch(WATCHED, where, now_s - max(4 * interval_s, 30.0), now_s + AHEAD_S))
    return joined(parts)
