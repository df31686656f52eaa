"""Requests of a run, also those that the server of a client's run reported in its own run."""

from __future__ import annotations

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

    `own` (N,) is then the mask of the requests of the run.
    """

    run: LoadedRun
    table: RequestTable
    reporter: str | None = None


def load_run_requests(source: SampleSource, search: RunSearch, given: RequestTable | None) -> RunRequests:
    """Load a run and its requests, if they are not `given`. Raises FetchError."""
    try:
        own = read_stored_requests(source, search.run_id)
    except FetchError as error:
        missing = error
    else:
        return RunRequests(load_gpu_run(source, search), given or own)
    run = load_gpu_run(source, search) if given else _load(source, search, missing)
    for run_id in sorted(run.beside):
        try:
            table = read_stored_requests(source, run_id, run.span_s)
        except FetchError:
            continue
        if requests_of_client(table, search.run_id).any():
            return RunRequests(run, given or table, run_id)
    if given:
        return RunRequests(run, given)
    raise missing


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
