"""Execution of a command as a run, with forwarded signals and exit code."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wattline.client import api as run_api
from wattline.client import contributor, recorder, values
from wattline.client.api import Api, ExporterError, RejectedRequestError, UnreachableError
from wattline.client.contributor import RunMembership
from wattline.client.gpus import GpuChoice
from wattline.client.messages import log_message
from wattline.client.summary import log_summary
from wattline.contract.api import MAX_RESULTS, UNIT_PATTERN, Outcome, begin_error
from wattline.contract.run import Run, RunFormatError
from wattline_workloads.runner import nsys
from wattline_workloads.runner.exporter import ExporterConnection
from wattline_workloads.runner.run_folder import RunFolder
from wattline_workloads.runner.signals import ForwardedSignals
from wattline_workloads.runner.simulated_gpu import release_dead_processes

NOT_EXECUTABLE = 126
NOT_FOUND = 127
_BEGIN_ATTEMPTS = 3  # an exporter with --exit-when-idle may be stopping
_END_WITHIN_S = 5.0  # time for a restart of the exporter
_RETRY_S = 0.2


@contextlib.contextmanager
def results_file() -> Iterator[Path]:
    """Yield the path of the job's results file; /dev/null if no temporary folder can be created."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="wattline-")
    except OSError as error:
        log_message(
            f"cannot keep the job's results: {error.strerror}; free temporary disk space or set "
            "TMPDIR"
        )
        yield Path(os.devnull)
        return
    with folder as name:
        yield Path(name) / "results.jsonl"


def read_results(path: Path) -> dict[str, float]:
    """Return the last value of each name. The file may be missing or have an incomplete line.

    Results beyond MAX_RESULTS are left out, since the exporter would otherwise reject all.
    """
    results: dict[str, float] = {}
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        with contextlib.suppress(ValueError):
            results |= _valid_results(json.loads(line))
    for name in list(results)[MAX_RESULTS:]:
        log_message(f"cannot report result {name}: a run has at most {MAX_RESULTS} results")
        del results[name]
    return results


def _valid_results(document: object) -> dict[str, float]:
    """Return the results of a line. Raises ValueError for a line that the exporter would reject."""
    if not isinstance(document, dict) or len(document) > MAX_RESULTS:
        raise ValueError(f"expected an object of at most {MAX_RESULTS} results")
    for name, value in document.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not re.fullmatch(UNIT_PATTERN, name):
            raise ValueError(f"{name}: expected a finite number")
    return document


class InvalidRunError(ValueError):
    """Invalid settings of a run."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    command: tuple[str, ...]
    workload: str
    gpus: GpuChoice
    labels: Mapping[str, str] = field(default_factory=dict)
    run_id: str | None = None
    sees_only_its_gpus: bool = False
    """True to set CUDA_VISIBLE_DEVICES to the GPUs of the run."""
    out: Path | None = None
    """Folder in which the run's folder is created; None for no folder."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Options of the job, with their defaults."""
    unit: str | None = None
    """Primary unit of work; None for that of the job."""
    nsys: bool = False
    """True to profile with Nsight Systems; its report is in the run's folder."""


def run_command(
    job: JobRequest, find_exporter: Callable[[], ExporterConnection], environ: Mapping[str, str]
) -> int:
    """Run the command; return its exit code, or 128 + n if signal n killed it.

    Raises InvalidRunError, NsysError, RunFolderError or ExporterError before the start of the
    command.
    """
    request = _request(job)
    if job.nsys:
        nsys.require_nsys()
    folder = RunFolder.create(job.out, request["run_id"]) if job.out else None
    try:
        connection, run = _begin(job, request, find_exporter)
    except (ExporterError, InvalidRunError):
        if folder is not None:
            folder.discard()
        raise
    api = connection.api
    _declare_unit(job, api, run.run_id)
    with ForwardedSignals() as signals, results_file() as results, _lease(api, run.run_id):
        membership = RunMembership(
            api, run.run_id, contributor.run_cgroup(environ), ExporterError, log_message
        )
        membership.add(
            os.getpid()
        )  # keeps the run open between the job's exit and the call of `end`
        environment = _environment(job, api, run, results, environ)
        environment[contributor.PIDS_REJECTION] = membership.rejection
        if folder is not None:
            environment[recorder.FOLDER] = str(folder.path)
            if job.nsys:
                job = replace(job, command=tuple(nsys.wrap_in_nsys(job.command, folder.path)))
            folder.start(run, job.command, job.config)
        child = _start(job.command, environment)
        outcome: Outcome = "failed"
        if isinstance(child, int):
            code = child
        else:
            code, outcome = _wait(child, signals, membership)
        if run.simulation is not None:
            release_dead_processes(Path(run.simulation))
        job_results = read_results(results)
        ended = _end(api, run.run_id, outcome, job_results)
    if folder is not None:
        folder.end(ended, outcome, code, job_results)
        if job.nsys:
            nsys.write_and_log_nsys_tables(folder.path)
    _log_end(ended, outcome, connection.source, has_started=not isinstance(child, int))
    return code


def _log_end(ended: Run | None, outcome: Outcome, source: str | None, *, has_started: bool) -> None:
    """Log the summary of a run; of a command that did not start, neither energy nor notes."""
    if ended is None:
        return
    if has_started:
        log_summary(ended.to_json(), outcome, source)
    else:
        log_message(f"run {ended.run_id} failed in 0.0 s: its command did not start")


def _request(job: JobRequest) -> dict[str, Any]:
    """Return the body of the start of the run. Raises InvalidRunError."""
    if job.nsys and job.out is None:
        raise InvalidRunError("--nsys needs --out DIR, since its report is in the run's folder")
    run_id = values.unique_run_id(job.workload) if job.run_id is None else job.run_id
    if reason := begin_error(job.workload, job.labels, run_id):
        raise InvalidRunError(reason)
    return {
        "workload": job.workload,
        "labels": dict(job.labels),
        "run_id": run_id,
        "lease_seconds": run_api.LEASE_S,
        **job.gpus.field(),
    }


def _begin(
    job: JobRequest, request: Mapping[str, Any], connect: Callable[[], ExporterConnection]
) -> tuple[ExporterConnection, Run]:
    for attempt in range(1, _BEGIN_ATTEMPTS + 1):
        connection = connect()
        try:
            return connection, _begin_at(connection.api, job, request)
        except UnreachableError:
            if attempt == _BEGIN_ATTEMPTS:
                raise
        except (ExporterError, InvalidRunError):
            connection.await_end()
            raise
    raise AssertionError


def _begin_at(api: Api, job: JobRequest, request: Mapping[str, Any]) -> Run:
    try:
        return _running(api.post("/runs", request))
    except RejectedRequestError as error:
        if error.status != 422 or job.gpus.is_explicit or not job.gpus.gpus:
            raise
        log_message(
            f"cannot measure the GPUs of the environment: {error}; measuring the GPUs that the job "
            "uses"
        )
        return _running(api.post("/runs", {**request, "gpus": []}))


def _declare_unit(job: JobRequest, api: Api, run_id: str) -> None:
    if job.unit is not None:
        contributor.Contributor(api, run_id, "").declare(job.unit)


def _running(answer: dict[str, Any]) -> Run:
    """Parse the response. A repeated request returns the earlier run, which must not have ended."""
    run = _parse_run(answer)
    if run.state != "running":
        raise InvalidRunError(f"run_id: run {run.run_id} has already ended; set another --run-id")
    return run


def _parse_run(answer: dict[str, Any]) -> Run:
    try:
        return Run.parse(answer)
    except RunFormatError as error:
        raise ExporterError(
            f"cannot read the exporter's response: {error}; "
            "install the same version of wattline for both"
        ) from error


def _environment(
    job: JobRequest, api: Api, run: Run, results: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    added = {
        run_api.RUN_ID: run.run_id,
        run_api.EXPORTER: api.address,
        run_api.RESULTS: str(results),
    }
    if run.simulation is not None:
        added[run_api.SIMULATION] = run.simulation
    if job.sees_only_its_gpus and run.gpus:
        added["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in run.gpus)
    return {**environ, **added}


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes] | int:
    """Return the process of the command; the exit code of a shell if it cannot be executed."""
    try:
        return subprocess.Popen(command, env=environment)
    except FileNotFoundError:
        log_message(f"cannot execute {command[0]}: command not found; check its name and PATH")
        return NOT_FOUND
    except OSError as error:
        log_message(
            f"cannot execute {command[0]}: {error.strerror}; check its mode and its #! line"
        )
        return NOT_EXECUTABLE


def _wait(
    child: subprocess.Popen[bytes], signals: ForwardedSignals, membership: RunMembership
) -> tuple[int, Outcome]:
    """Return exit code and outcome of the command."""
    signals.attach(child)
    membership.add(child.pid, is_gone=lambda: child.poll() is not None)
    return _exit_and_outcome(child.wait(), signals.received)


def _exit_and_outcome(returncode: int, received: set[int]) -> tuple[int, Outcome]:
    """Return exit code and outcome. A shell exits with 128 + n if signal n killed its child."""
    if returncode < 0:
        return 128 - returncode, "interrupted"
    if returncode - 128 in received:
        return returncode, "interrupted"
    return returncode, "failed" if returncode else "ok"


@contextlib.contextmanager
def _lease(api: Api, run_id: str) -> Iterator[None]:
    """Renew the lease every third of its length. Errors are ignored: the end of the run reports
    them.
    """
    closing = threading.Event()

    def renew() -> None:
        while not closing.wait(run_api.LEASE_S / 3):
            with contextlib.suppress(ExporterError):
                api.post(f"/runs/{run_id}/work", {})

    threading.Thread(target=renew, name="lease", daemon=True).start()
    try:
        yield
    finally:
        closing.set()


def _end(api: Api, run_id: str, outcome: Outcome, results: Mapping[str, float]) -> Run | None:
    give_up_s = time.monotonic() + _END_WITHIN_S
    while True:
        try:
            return _parse_run(
                api.post(f"/runs/{run_id}/end", {"outcome": outcome, "results": dict(results)})
            )
        except UnreachableError as error:
            if time.monotonic() > give_up_s:
                log_message(
                    f"cannot end run {run_id}: {error}; after its restart the exporter ends the "
                    "run as interrupted, "
                    "at the last time that it found one of the run's processes"
                )
                return None
            time.sleep(_RETRY_S)
        except ExporterError as error:
            log_message(f"cannot end run {run_id}: {error}")
            return None
