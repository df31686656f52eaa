"""Fetch of a fleet with GPU hours, uncertainties, coverage by nodes, and counters by owner."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from wattline_analyzer.core.sources.base import SampleSource
from wattline_analyzer.core.sources.promql import EDGE_MS, InstantServer, QuerySpan
from wattline_analyzer.usage import queries as q
from wattline_analyzer.usage.fleet import Counts, NodeTimes, end_tolerance_s, start_tolerance_s
from wattline_analyzer.usage.local import LocalFleet
from wattline_analyzer.usage.owners import (
    METRICS,
    local_owner_sums,
    prefer_owners,
    queried_owner_sums,
)
from wattline_analyzer.usage.results import FleetClient, FleetRequest, counted, fetch_counts


def fetch_usage(server: InstantServer, request: FleetRequest, log: Callable[[str], None]) -> Counts:
    """Return the sums of a server. Raises FetchError."""
    client = FleetClient(server, request, log)
    certain = client.sums(counted(client.cut, q.certain_energy_queries), ())
    squared_halves = client.once(q.squared_uncertainty_query(client.cut))
    gpu_seconds = client.sums(counted(client.cut, q.gpu_seconds_queries), ())
    counts = replace(
        fetch_counts(client, request),
        gpu_seconds=gpu_seconds.result(),
        certain=certain.result(),
        squared_halves=squared_halves.result(),
        nodes=_node_times(client),
    )
    counts = prefer_owners(counts, queried_owner_sums(client, request), request)
    return replace(
        counts,
        means=replace(counts.means, asked=server.query_count, moved_bytes=server.transferred_bytes),
    )


def fetch_local_usage(source: SampleSource, request: FleetRequest) -> tuple[Counts, bool]:
    """Return the sums of an exporter or a history, and True if a GPU is simulated. Raises
    FetchError.
    """
    local = LocalFleet(source, request, METRICS)
    counts = prefer_owners(local.counts(), local_owner_sums(local.window, request), request)
    return counts, local.window.simulated


def _node_times(client: FleetClient) -> NodeTimes:
    whole = client.cut.whole
    halves = [_scrapes(client, half) for half in whole.halves()]
    scrapes: dict[str, float] = {}
    for half in halves:
        if half is None:
            return NodeTimes()
        scrapes |= {name: max(count, scrapes.get(name, 0.0)) for name, count in half.items()}
    window_s = whole.long_ms / 1_000
    late_ms = round(1_000 * start_tolerance_s(window_s))
    first = _scrapes(client, QuerySpan(EDGE_MS + late_ms, whole.from_ms - late_ms))
    # powers of two, for few queries
    interval_s = {
        name: 2.0 ** math.ceil(math.log2(0.45 * window_s / count))
        for name, count in scrapes.items()
    }
    until = {
        name: round(1_000 * end_tolerance_s(window_s, one)) for name, one in interval_s.items()
    }
    final = {ms: _scrapes(client, QuerySpan(ms, whole.until_ms)) for ms in set(until.values())}
    return NodeTimes(
        tuple(sorted(scrapes)),
        tuple(sorted(name for name in scrapes if first is not None and name not in first)),
        tuple(
            sorted(
                name
                for name, ms in until.items()
                if (seen := final[ms]) is not None and name not in seen
            )
        ),
    )


def _scrapes(client: FleetClient, span: QuerySpan) -> dict[str, float] | None:
    """Return the number of scrapes by instance, None if the server refuses a query of this size."""
    found = client.values(q.nodes_query(span)).result()
    return None if found is None else {one.labels.get("instance", ""): one.value for one in found}
