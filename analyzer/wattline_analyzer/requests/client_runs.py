"""Requests of a run, also those that the server of a client's run reported in its own run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from wattline.contract.requests.served import CLIENT_RUN_LABEL, client_run_mark
from wattline_analyzer.core.fetch import TimeRange
from wattline_analyzer.core.runs.load import RunNotFoundError
from wattline_analyzer.core.sources.base import FetchError, SampleSource
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.requests.loaded_run import LoadedRun, RunSearch, load_gpu_run
from wattline_analyzer.requests.part import ended_in
from wattline_analyzer.requests.stored import read_stored_requests
from wattline_analyzer.requests.table import RequestTable

AROUND_S = 86_400.0
"""Time before and after a part of a run, in which the model, the idle power and other work are
learned for the part.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzedRequests:
    """Requests of a server in the time that is analyzed, `time_s`.

    `counted` (N,) is the mask of those that count, None for all: they end in `part_s`, and those of
    a client are of its run `client`, whose time with that of its requests is `client_s`; `client_j`
    is attributed to it, if all of its time counts. `clients` are the runs of all clients of servers
    on the same GPUs. `warnings` name further runs that have requests of the client.
    """

    table: RequestTable
    time_s: TimeRange
    part_s: TimeRange | None = None
    counted: npt.NDArray[np.bool_] | None = None
    client: str | None = None
    client_s: TimeRange | None = None
    client_j: float | None = None
    clients: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequests(AnalyzedRequests):
    """Requests in a run of a server. Given requests of a client are in its own run, with that of
    its `server`.
    """

    run: LoadedRun
    server: str | None = None


def requests_in_range(given: RequestTable, span_s: TimeRange) -> AnalyzedRequests:
    """Return given requests, of which those count that end in a time range."""
    time_s = _time_of_given(span_s, given)
    if time_s == span_s:
        return AnalyzedRequests(table=given, time_s=time_s)
    return AnalyzedRequests(
        table=given, time_s=time_s, part_s=span_s, counted=ended_in(given, span_s)
    )


def load_run_requests(
    source: SampleSource,
    search: RunSearch,
    given: RequestTable | None,
    part_s: TimeRange | None = None,
) -> RunRequests:
    """Load a run and its requests, if they are not `given`; those that end in `part_s` count.
    Raises FetchError.
    """
    own = None
    missing = None
    try:
        own = read_stored_requests(
            source, search.run_id, None if part_s is None else _around(part_s)
        )
    except FetchError as error:
        missing = error
    run = (
        load_gpu_run(source, search) if given or missing is None else _load(source, search, missing)
    )
    if part_s is not None:
        run.check_part(part_s)
    tables, clients = _of_servers(source, run)
    reporter = next(iter(tables), None) if own is None else None
    if table := given or own:
        counted = None if part_s is None else ended_in(table, part_s)
        time_s = _time(run, part_s, given)
        found = RunRequests(
            run=run, table=table, time_s=time_s, part_s=part_s, counted=counted, server=reporter
        )
    elif reporter is not None:
        found = _of_client(
            source, run, load_gpu_run(source, replace(search, run_id=reporter)), part_s
        )
    else:
        assert missing is not None
        raise missing
    warnings = tuple(
        f"run {run_id} has {requests_of_client(each, run.run_id).sum():,} further requests of this "
        "run, which are not "
        f"counted here: see analyzer requests --run-id {run_id} --by {CLIENT_RUN_LABEL}"
        for run_id, each in tables.items()
        if run_id != reporter and not given
    )
    return replace(found, clients=frozenset(clients | client_runs(found.table)), warnings=warnings)


def _of_servers(source: SampleSource, run: LoadedRun) -> tuple[dict[str, RequestTable], set[str]]:
    """Return the requests at the time of a run in the runs of servers that have some of it, and all
    runs of clients.
    """
    tables = {}
    clients = set()
    for run_id in sorted(run.beside()):
        try:
            table = read_stored_requests(source, run_id, run.span_s)
        except FetchError:
            continue
        clients |= client_runs(table)
        if requests_of_client(table, run.run_id).any():
            tables[run_id] = table
    return tables, clients


def _of_client(
    source: SampleSource, client: LoadedRun, server: LoadedRun, part_s: TimeRange | None
) -> RunRequests:
    """Return all requests to a server around the time of its client, of which those of the client
    count.
    """
    time_s = _time(server, client.span_s, None)
    table = read_stored_requests(source, server.run_id, None if time_s == server.span_s else time_s)
    counted = requests_of_client(table, client.run_id, client.span_s)
    spans = table.spans
    start_s = min(client.span_s[0], float(spans.arrived_s[counted].min(initial=math.inf)))
    end_s = max(client.span_s[1], float(spans.ended_s[counted].max(initial=-math.inf)))
    if part_s is not None:
        counted &= ended_in(table, part_s)
    return RunRequests(
        run=server,
        table=table,
        time_s=time_s,
        part_s=part_s,
        counted=counted,
        client=client.run_id,
        client_s=(start_s, end_s),
        client_j=client.attributed_j if part_s is None else None,
    )


def _time(run: LoadedRun, part_s: TimeRange | None, given: RequestTable | None) -> TimeRange:
    """Return the time of a run that is analyzed for a part of it. Given requests may lack others
    around the part.
    """
    if part_s is None:
        return run.span_s
    start_s, end_s = _time_of_given(part_s, given) if given else _around(part_s)
    return max(start_s, run.span_s[0]), min(end_s, run.span_s[1])


def _time_of_given(span_s: TimeRange, given: RequestTable) -> TimeRange:
    """Return a time range extended by that of the given requests near it."""
    first_s, last_s = _around(span_s)
    spans = given.spans
    near = (spans.ended_s > first_s) & (spans.arrived_s < last_s)
    start_s = float(spans.arrived_s[near].min(initial=span_s[0]))
    end_s = float(spans.ended_s[near].max(initial=span_s[1]))
    return max(start_s, first_s), min(end_s, last_s)


def _around(span_s: TimeRange) -> TimeRange:
    return span_s[0] - AROUND_S, span_s[1] + AROUND_S


def _load(source: SampleSource, search: RunSearch, missing: FetchError) -> LoadedRun:
    """Load a run without requests. Raises `missing` if it has no GPUs, and RunNotFoundError if an
    exporter or a history has no such run.
    """
    try:
        return load_gpu_run(source, search)
    except RunNotFoundError as error:
        is_unknown = isinstance(missing, RunNotFoundError) or isinstance(source, HistorySource)
        raise error if is_unknown else missing from None
    except FetchError:
        raise missing from None


def client_runs(table: RequestTable) -> set[str]:
    """Return the runs of clients by the labels of their requests."""
    return {labels[CLIENT_RUN_LABEL] for labels in table.label_sets if CLIENT_RUN_LABEL in labels}


def requests_of_client(
    table: RequestTable, run_id: str, span_s: TimeRange | None = None
) -> npt.NDArray[np.bool_]:
    """Return the mask of the requests of a client's run, by their label or their ids, (N,).

    Ids are read one by one: those of requests outside of `span_s` are not.
    """
    has_label = np.array(
        [labels.get(CLIENT_RUN_LABEL) == run_id for labels in table.label_sets], dtype=bool
    )
    own = has_label[table.label_of]
    start_s, end_s = span_s or (-math.inf, math.inf)
    near = (table.spans.ended_s > start_s) & (table.spans.arrived_s < end_s)
    mark = client_run_mark(run_id)
    for position in np.flatnonzero(near & ~own).tolist():
        own[position] = mark in table.ids[position]
    return own
