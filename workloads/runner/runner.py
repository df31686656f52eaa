"""A command as a run: begin, start it, pass signals through, end, and pass its exit code on."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from exporter.contract.run import MAX_RESULTS, BeginRequest, EndRequest, Outcome, Run
from workloads.client import api as run_api
from workloads.client import recorder, registration, values
from workloads.client.api import Api, ExporterError, RefusedError, UnreachableError
from workloads.client.gpus import Choice
from workloads.client.messages import say
from workloads.client.registration import Membership
from workloads.runner import nsys
from workloads.runner import summary as ended_run
from workloads.runner.exporter import Reached
from workloads.runner.run_folder import RunFolder
from workloads.runner.signals import PassedSignals
from workloads.runner.simulated_gpu import release_dead


@contextlib.contextmanager
def made() -> Iterator[Path]:
    """Where there is no room for one, what takes everything and keeps nothing: the run goes on."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="wattline-")
    except OSError as error:
        say(f"the job's results will not be kept: {error.strerror}; make room there, or set TMPDIR")
        yield Path(os.devnull)
        return
    with folder as name:
        yield Path(name) / "results.jsonl"


def read(path: Path) -> dict[str, float]:
    """The last value of each name; a job may have no client, or be killed while it writes a line. Its processes may
    have more together than a run can have, and all would be refused.
    """
    results: dict[str, float] = {}
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        with contextlib.suppress(ValueError):
            results |= EndRequest.model_validate({"results": json.loads(line)}).results
    for name in list(results)[MAX_RESULTS:]:
        say(f"result {name} is left out: a run has {MAX_RESULTS} at most")
        del results[name]
    return results


NOT_EXECUTABLE, NOT_FOUND = 126, 127
_BEGIN_ATTEMPTS = 3  # the exporter in reach may just be ending with its last run
_END_WITHIN_S = 5.0  # one that is being restarted is back by then
_RETRY_S = 0.2


class RequestError(ValueError):
    """What the user asked for is no valid run."""


@dataclass(frozen=True, slots=True)
class Job:
    command: tuple[str, ...]
    workload: str
    gpus: Choice
    labels: Mapping[str, str] = field(default_factory=dict)
    run_id: str | None = None
    sees_only_its_gpus: bool = False
    """Whether CUDA_VISIBLE_DEVICES is set to the GPUs of the run."""
    out: Path | None = None
    """Where the run's folder is made; None writes none."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The job's options with their defaults."""
    nsys: bool = False
    """Whether Nsight Systems is around the command; its report is kept in the run's folder."""


def run_command(job: Job, find_exporter: Callable[[], Reached], environ: Mapping[str, str]) -> int:
    """The command's exit code, 128 + n where signal n killed it. Before the start: RequestError, NsysError,
    RunFolderError, ExporterError.
    """
    request = _request(job)
    if job.nsys:
        nsys.require()
    folder = RunFolder.make(job.out, str(request.run_id)) if job.out else None
    try:
        reached, run = _begin(job, request, find_exporter)
    except (ExporterError, RequestError):
        if folder is not None:
            folder.discard()
        raise
    api = reached.api
    with PassedSignals() as signals, made() as results, _lease(api, run.run_id):
        membership = Membership(api, run.run_id, registration.named(environ), ExporterError, say)
        membership.add(os.getpid())  # the run must not end between the job's exit and its report
        environment = _environment(job, api, run, results, environ)
        if folder is not None:
            environment[recorder.FOLDER] = str(folder.path)
            if job.nsys:
                job = replace(job, command=tuple(nsys.wrapped(job.command, folder.path)))
            folder.start(run, job.command, job.config)
        code, outcome = _execute(job, signals, environment, membership)
        if run.simulation is not None:
            release_dead(Path(run.simulation))
        measured = read(results)
        ended = _end(api, run.run_id, outcome, measured)
    if folder is not None:
        folder.end(ended, outcome, code, measured)
        if job.nsys:
            nsys.keep_stats_and_say(folder.path)
    if ended is not None:
        ended_run.say_all(ended, outcome, reached.source)
    return code


def _request(job: Job) -> BeginRequest:
    if job.nsys and job.out is None:
        raise RequestError("--nsys needs --out DIR: its report is kept in the run's folder")
    try:
        return BeginRequest.model_validate(
            {
                "workload": job.workload,
                "labels": dict(job.labels),
                "run_id": job.run_id or values.fresh(job.workload),
                "lease_seconds": run_api.LEASE_S,
                **job.gpus.field(),
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "[key]")
        raise RequestError(f"{where}: {first['msg']}") from error


def _begin(job: Job, request: BeginRequest, find_exporter: Callable[[], Reached]) -> tuple[Reached, Run]:
    for attempt in range(1, _BEGIN_ATTEMPTS + 1):
        reached = find_exporter()
        try:
            return reached, _begin_at(reached.api, job, request)
        except UnreachableError:
            if attempt == _BEGIN_ATTEMPTS:
                raise
    raise AssertionError


def _begin_at(api: Api, job: Job, request: BeginRequest) -> Run:
    body = request.model_dump(exclude_none=True)
    try:
        return _begun(api.post("/runs", body))
    except RefusedError as error:
        if error.status != 422 or job.gpus.asked or not job.gpus.gpus:
            raise
        say(f"measuring the GPUs on which the job is seen, as those of the environment cannot be: {error}")
        return _begun(api.post("/runs", {**body, "gpus": []}))


def _begun(answer: dict[str, Any]) -> Run:
    """The same body again is answered with the run that there was."""
    run = _run(answer)
    if run.state != "running":
        raise RequestError(f"run_id: run {run.run_id} has ended already; give another --run-id")
    return run


def _run(answer: dict[str, Any]) -> Run:
    try:
        return Run.model_validate(answer)
    except ValidationError as error:
        raise ExporterError(
            f"the exporter's answer is not the run that this version expects ({error.errors()[0]['loc']}); "
            "install the same version of wattline for both"
        ) from error


def _environment(job: Job, api: Api, run: Run, results: Path, environ: Mapping[str, str]) -> dict[str, str]:
    added = {run_api.RUN_ID: run.run_id, run_api.EXPORTER: api.address, run_api.RESULTS: str(results)}
    if run.simulation is not None:
        added[run_api.SIMULATION] = run.simulation
    if job.sees_only_its_gpus and run.gpus:
        added["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in run.gpus)
    return {**environ, **added}


def _execute(
    job: Job, signals: PassedSignals, environment: Mapping[str, str], membership: Membership
) -> tuple[int, Outcome]:
    try:
        child = subprocess.Popen(job.command, env=environment)
    except FileNotFoundError:
        say(f"{job.command[0]}: command not found")
        return NOT_FOUND, "failed"
    except OSError as error:
        say(f"{job.command[0]} cannot be executed: {error.strerror}")
        return NOT_EXECUTABLE, "failed"
    signals.attach(child)
    membership.add(child.pid, is_gone=lambda: child.poll() is not None)
    return _judge(child.wait(), signals.seen)


def _judge(returncode: int, seen: set[int]) -> tuple[int, Outcome]:
    """A shell that lost its own child to a signal exits with 128 + n: an interruption, where that signal came by."""
    if returncode < 0:
        return 128 - returncode, "interrupted"
    if returncode - 128 in seen:
        return returncode, "interrupted"
    return returncode, "failed" if returncode else "ok"


@contextlib.contextmanager
def _lease(api: Api, joined: str) -> Iterator[None]:
    """Renewed every third of it; a failure is said at the end, where it matters."""
    closing = threading.Event()

    def renew() -> None:
        while not closing.wait(run_api.LEASE_S / 3):
            with contextlib.suppress(ExporterError):
                api.post(f"/runs/{joined}/work", {})

    threading.Thread(target=renew, name="lease", daemon=True).start()
    try:
        yield
    finally:
        closing.set()


def _end(api: Api, joined: str, outcome: Outcome, results: Mapping[str, float]) -> Run | None:
    give_up_s = time.monotonic() + _END_WITHIN_S
    while True:
        try:
            return _run(api.post(f"/runs/{joined}/end", {"outcome": outcome, "results": dict(results)}))
        except UnreachableError as error:
            if time.monotonic() > give_up_s:
                say(
                    f"run {joined} could not be ended: {error}; once the exporter is back it ends the run as "
                    "interrupted, at the last moment it was known to live"
                )
                return None
            time.sleep(_RETRY_S)
        except ExporterError as error:
            say(f"run {joined} could not be ended: {error}")
            return None
