"""Requests of a run, also those that the server of a client's run reported in its own run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analyzer.sources.base import FetchError, SampleSource
from analyzer.sources.requests.loaded_run import LoadedRun, RunSearch, load_gpu_run
from analyzer.sources.requests.stored import read_stored_requests
from analyzer.studies.requests.table import RequestTable
from exporter.contract.requests.served import CLIENT_RUN_LABEL, client_run_mark


class RunRequests(NamedTuple):
    """Requests of a run. If its server reported them, in the run `reporter`, `table` has those of other clients, too.

    `warnings` name further runs that have requests of this one.
    """

    run: LoadedRun
    table: RequestTable
    reporter: str | None
    warnings: tuple[str, ...]


def load_run_requests(source: SampleSource, search: RunSearch, given: RequestTable | None) -> RunRequests:
    """Load a run and its requests, if they are not `given`. Raises FetchError."""
    own, missing = None, None
    try:
        own = read_stored_requests(source, search.run_id)
    except FetchError as error:
        missing = error
    run = load_gpu_run(source, search) if given or missing is None else _load(source, search, missing)
    tables = dict(_of_servers(source, run))
    reporter = next(iter(tables), None) if own is None else None
    table = given or own or (tables[reporter] if reporter else None)
    if table is None:
        assert missing is not None
        raise missing
    warnings = tuple(
        f"run {run_id} has {requests_of_client(each, run.run_id).sum():,} further requests of this run, which are not "
        f"counted here: see analyzer requests --run-id {run_id} --by {CLIENT_RUN_LABEL}"
        for run_id, each in tables.items()
        if run_id != reporter and not given
    )
    return RunRequests(run, table, reporter, warnings)


def _of_servers(source: SampleSource, run: LoadedRun) -> Iterator[tuple[str, RequestTable]]:
    """Yield the runs of servers that have requests of the run, with their requests at its time."""
    for run_id in sorted(run.beside):
        try:
            table = read_stored_requests(source, run_id, run.span_s)
        except FetchError:
            continue
        if requests_of_client(table, run.run_id).any():
            yield run_id, table


def _load(source: SampleSource, search: RunSearch, missing: FetchError) -> LoadedRun:
    """Load a run without requests. Raises `missing` if there is no such run with GPUs."""
    try:
        return load_gpu_run(source, search)
    except FetchError:
        raise missing from None


def client_runs(table: RequestTable) -> set[str]:
    """Return the runs of clients by the labels of their requests."""
    return {labels[CLIENT_RUN_LABEL] for labels in table.label_sets if CLIENT_RUN_LABEL in labels}


def requests_of_client(table: RequestTable, run_id: str) -> npt.NDArray[np.bool_]:
    """Return the mask of the requests of a client's run, by their label or their ids, (N,)."""
    has_label = np.array([labels.get(CLIENT_RUN_LABEL) == run_id for labels in table.label_sets], dtype=bool)
    mark, own = client_run_mark(run_id), has_label[table.label_of]
    for position in np.flatnonzero(~own).tolist():
        own[position] = mark in table.ids[position]
    return own
