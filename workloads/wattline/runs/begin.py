"""Begin of a run, or its choice: that of the runner, or of the first rank of the node."""

from __future__ import annotations

import collections
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattline.client import api as run_api
from wattline.client import gpus as gpu_choice
from wattline.client import ranks
from wattline.client import values as numbers
from wattline.client.api import Api, JobApi, RejectedRequestError, UnreachableError
from wattline.client.contributor import CGROUP, RunMembership, processes_body
from wattline.client.messages import log_message_once
from wattline.runs.end_report import EndReport

_begun: collections.Counter[str] = collections.Counter()


@dataclass(frozen=True, slots=True)
class BegunRun:
    """Run of which this process is now a part."""

    run_id: str
    is_own: bool = False
    """True if this process has begun the run and must end it."""
    is_of_rank: bool = False
    """True if the first rank of the node waits for this process before it ends the run."""
    has_process: bool = False
    """True if this process is already one of the run's."""
    simulation: str | None = None
    """State file of simulated GPUs."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Workload, labels and GPUs of a run; `gpus` has the form of `workloads run --gpus`.

    `known_run` is a running run that this process is already part of, such as a discovered one.
    """

    workload: str
    labels: Mapping[str, str]
    gpus: str | None
    known_run: str | None = None


def begin_or_choose(
    api: JobApi, request: RunRequest, environ: Mapping[str, str]
) -> BegunRun | None:
    """Begin a run, or choose that of the runner or the first rank; None if that rank has no open
    run.

    Raises ExporterError and GpusError.
    """
    joined = environ.get(run_api.RUN_ID)
    if joined:
        return BegunRun(joined)
    if request.known_run:
        return BegunRun(request.known_run, has_process=True)
    _begun[request.workload] += 1
    ids = ranks.candidate_run_ids(environ, request.workload, _begun[request.workload])
    if not ranks.is_launched(environ):
        return _begin(api, request, numbers.unique_run_id(request.workload))
    if ranks.is_node_leader(environ):
        return _begin(api, request, ranks.first_free_run_id(api, ids, ranks.process_started_at()))
    return _run_of_leader(request, ranks.await_run_of_leader(api, ids, ranks.process_started_at()))


def _run_of_leader(request: RunRequest, leader_run: Mapping[str, Any] | None) -> BegunRun | None:
    if leader_run is None:
        cause = f"the process with LOCAL_RANK=0 started no run {request.workload!r}"
    elif leader_run["state"] != "running":
        cause = f"its run {leader_run['run_id']} has already ended"
    else:
        return BegunRun(
            leader_run["run_id"], is_of_rank=True, simulation=leader_run.get("simulation")
        )
    log_message_once(f"this process's work is not counted: {cause}")
    return None


def _begin(api: JobApi, request: RunRequest, run_id: str) -> BegunRun:
    choice = gpu_choice.choose_gpus(request.gpus, os.environ)
    if choice.warning:
        log_message_once(choice.warning)
    body = {
        "workload": request.workload,
        "labels": dict(request.labels),
        "run_id": run_id,
        "lease_seconds": run_api.LEASE_S,
        **choice.field(),
        **processes_body(
            os.getpid()
        ),  # the run ends with this process, also if the answer never arrives
    }
    try:
        started = _post_begin(api, body, is_hint=bool(choice.gpus) and not choice.is_explicit)
    except UnreachableError as error:
        if isinstance(error.__cause__, TimeoutError):  # the exporter may begin the run later
            EndReport(api, run_id, "interrupted").post_or_repeat()
        raise
    has_process = "pids" in body and not os.environ.get(CGROUP)
    return BegunRun(
        run_id, is_own=True, has_process=has_process, simulation=started.get("simulation")
    )


def _post_begin(api: Api, body: dict[str, Any], *, is_hint: bool) -> Mapping[str, Any]:
    """Begin the run. If the exporter rejects GPUs that are only a hint, or a process that it cannot
    see, omit them.

    The omitted field is removed from `body`.
    """
    try:
        return api.post("/runs", body)
    except RejectedRequestError as error:
        if error.status != 422:
            raise
        if "pids" in body and str(error).startswith("pid"):
            del body["pids"]
            body.pop("pid_namespace", None)
        elif is_hint and body["gpus"]:
            body["gpus"] = []  # CUDA_VISIBLE_DEVICES on a machine without GPUs
        else:
            raise
    return _post_begin(api, body, is_hint=is_hint)


def register_this_process(api: Api, run_id: str) -> None:
    """Register this process with the run; log a rejection.

    Raises UnreachableError, and RejectedRequestError if there is no such run.
    """
    group = os.environ.get(CGROUP)
    rejections = list[str]()
    RunMembership(api, run_id, group, RejectedRequestError, rejections.append).add(os.getpid())
    if rejections and not _is_known(api, run_id):
        cause = (
            f"the exporter has no run {run_id!r}; correct {run_api.RUN_ID} or {run_api.EXPORTER}"
        )
        raise RejectedRequestError(404, cause)
    for each in rejections:
        log_message_once(each)


def _is_known(api: Api, run_id: str) -> bool:
    try:
        api.get(f"/runs/{run_id}")
    except RejectedRequestError as error:
        return error.status != 404
    return True
