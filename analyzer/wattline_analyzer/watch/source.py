"""Fetch of the latest samples, with one request per node."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np

from wattline.contract import metrics as m
from wattline_analyzer.core.runs.load import last_scrapes, run_not_found
from wattline_analyzer.core.runs.scrapes import AHEAD_S, USUAL_INTERVAL_S
from wattline_analyzer.core.sample_table import SampleTable, join_tables
from wattline_analyzer.core.sources.base import FetchError, SampleSource
from wattline_analyzer.watch.watch import WATCHED

MOST_NODES = 8
_LOOK_BACK_S = 180.0
_NAMED = 5
_ENDED_WITHIN_S = 30 * 86_400.0


def find_nodes(
    source: SampleSource, now_s: float, node: str | None, run_id: str | None
) -> dict[str, float]:
    """Return the instances to watch, each with its scrape interval in seconds.

    Raises FetchError if none was scraped in the last minutes, or there are too many for a terminal.
    """
    table = source.fetch([m.BUILD_INFO], {}, now_s - _LOOK_BACK_S, now_s + AHEAD_S)
    every = {instance: _interval_s(rows) for (instance,), rows in table.groups("instance")}
    if not every and run_id is not None:
        raise _inactive_run(source, run_id, now_s)
    if not every:
        raise FetchError(
            f"no node was scraped by {source.name} in the last {_LOOK_BACK_S / 60:.0f} min",
            "check the exporter (run on the node: exporter check), and the clock of this machine",
        )
    chosen = set(every)
    if run_id is not None:
        starts = source.facts(
            [m.RUN_START], {"run_id": run_id}, now_s - _LOOK_BACK_S, now_s + AHEAD_S
        )
        chosen &= {start.instance for start in starts}
        if not chosen:
            raise _inactive_run(source, run_id, now_s)
    if node is not None:
        chosen = {one for one in chosen if node in (one, one.rpartition(":")[0])}
    if not chosen:
        raise FetchError(f"no node {node!r} at {source.name}", _nodes_there(sorted(every)))
    if len(chosen) > MOST_NODES:
        raise FetchError(
            f"{source.name} has {len(chosen)} nodes: {_first_names(sorted(chosen))}",
            "select one with --node",
        )
    return {one: every[one] for one in sorted(chosen)}


def _inactive_run(source: SampleSource, run_id: str, now_s: float) -> FetchError:
    """Return the error for a run without recent samples: it has ended, its exporter is down, or it
    is unknown.
    """
    scrapes = last_scrapes(source, now_s - _ENDED_WITHIN_S, now_s + AHEAD_S, run_id)
    if not scrapes:
        return run_not_found(source, run_id, _ENDED_WITHIN_S, now_s)
    newest_s = max(row.t for row in scrapes)
    ends = source.facts(
        [m.RUN_END], {"run_id": run_id}, newest_s - _LOOK_BACK_S, newest_s + AHEAD_S
    )
    when = _local_time(max((row.value for row in ends), default=newest_s))
    hint = f"see: analyzer report --run-id {run_id} --source {source.name}"
    if ends:
        return FetchError(f"run {run_id!r} ended at {when}, so it has no live values", hint)
    return FetchError(
        f"run {run_id!r} has no sample since {when}: its exporter is down, or is not scraped", hint
    )


def _local_time(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s).astimezone():%Y-%m-%d %H:%M:%S %z}"


def _interval_s(rows: SampleTable) -> float:
    times = np.unique(rows.t)[-10:]
    return float(np.median(np.diff(times))) if len(times) > 1 else USUAL_INTERVAL_S


def _nodes_there(names: Sequence[str]) -> str:
    """Return the hint; an exporter and its history have no name for their only node."""
    return (
        f"known nodes: {_first_names(names)}"
        if any(names)
        else "this source has a single node: leave out --node"
    )


def _first_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def fetch_latest(source: SampleSource, instances: dict[str, float], now_s: float) -> SampleTable:
    """Return raw samples of the last scrapes; `instances` is the result of `find_nodes`. Raises
    FetchError.
    """
    parts = []
    for instance, interval_s in instances.items():
        where = {"instance": instance} if instance else {}
        parts.append(
            source.fetch(WATCHED, where, now_s - max(4 * interval_s, 30.0), now_s + AHEAD_S)
        )
    return join_tables(parts)
