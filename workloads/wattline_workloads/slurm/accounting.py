"""Energy of an ended job in Slurm's accounting database, written by the controller's epilog."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from wattline.client.api import Api, ExporterError
from wattline.contract.run import Run
from wattline_workloads.slurm.comment import (
    PREFIX,
    EnergyComment,
    sum_of_nodes,
    unknown_attempts,
)
from wattline_workloads.slurm.job import PrologJob, SlurmError, run_slurm_command
from wattline_workloads.slurm.node import find_run, parse_run

NODE_URL = "WATTLINE_NODE_URL"
"""Variable with the address of the exporter of a node; `{address}` is the node's address in Slurm.
"""
DEFAULT_NODE_URL = "http://{address}:9847"
LOG = "WATTLINE_SLURM_LOG"
"""Variable with the path of the log."""
DEFAULT_LOG = "/var/log/wattline-slurm.log"
WAIT_S = 60.0
"""Time for the nodes to end their runs."""
RECORD_WAIT_S = 300.0
"""Time for slurmdbd to receive the record of the job."""
_RETRY_S = 1.0
_REQUEST_TIMEOUT_S = 3.0
_DATABASE_TIMEOUT_S = 20.0
_THREADS = 16


def write_energy(
    job: PrologJob, log: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> str | None:
    """Write the job's energy over all of its nodes to AdminComment; return the comment, None if
    nothing is known of it.

    Raises SlurmError.
    """
    addresses = _node_addresses(job)
    url = job.environ.get(NODE_URL) or DEFAULT_NODE_URL
    runs = _wait_for_runs(
        job, {node: url.format(address=address) for node, address in addresses.items()}, log, sleep
    )
    if not runs:
        return None
    attempt = max(job.attempt_of(run.run_id) for run in runs.values())
    for node in [node for node, run in runs.items() if job.attempt_of(run.run_id) < attempt]:
        log(
            f"no energy of node {node}: its latest run of the job, {runs.pop(node).run_id}, is "
            "an earlier attempt"
        )
    for node, run in runs.items():
        energy = run.energy()
        if energy.state != "known":
            extent = "no" if energy.value is None else "only a part of the"
            log(f"{extent} energy of node {node}: {energy.reason}")
    of_job = sum_of_nodes(list(runs.values()), len(addresses))
    return _write_comment(job, of_job, attempt, log, sleep)


def _node_addresses(job: PrologJob) -> dict[str, str]:
    """Return the address of each node of the job. Raises SlurmError."""
    names = job.environ.get("SLURM_JOB_NODELIST", "")
    text = run_slurm_command("scontrol", "show", "node", "-o", names, timeout_s=_DATABASE_TIMEOUT_S)
    return dict(re.findall(r"NodeName=(\S+) .*?NodeAddr=(\S+)", text))


def _wait_for_runs(
    job: PrologJob,
    urls: Mapping[str, str],
    log: Callable[[str], None],
    sleep: Callable[[float], None],
) -> dict[str, Run]:
    """Return the ended run of each node that has one, once all have ended, at most after WAIT_S."""
    apis = {node: Api(url, _REQUEST_TIMEOUT_S) for node, url in urls.items()}
    ended: dict[str, Run] = {}
    run_ids: dict[str, str] = {}
    problems: dict[str, str] = {}
    give_up_s = time.monotonic() + WAIT_S

    def poll(node: str) -> None:
        try:
            # the first answer decides which attempt ended: a later one may start before the next
            # poll
            run = (
                parse_run(apis[node].get(f"/runs/{run_ids[node]}"))
                if node in run_ids
                else find_run(job, apis[node])
            )
        except (ExporterError, SlurmError) as error:
            problems[node] = str(error)
            return
        if run is None:
            problems[node] = "the exporter has no run of the job"
            return
        run_ids[node] = run.run_id
        problems[node] = f"the run {run.run_id} has not ended"
        if run.state == "ended":
            ended[node] = run
            del problems[node]

    with ThreadPoolExecutor(_THREADS) as threads:
        while True:
            list(threads.map(poll, [node for node in urls if node not in ended]))
            if len(ended) == len(urls) or time.monotonic() > give_up_s:
                break
            sleep(_RETRY_S)
    for node, problem in problems.items():
        log(f"no energy of node {node}: {problem}")
    return ended


def _write_comment(
    job: PrologJob,
    energy: EnergyComment,
    attempt: int,
    log: Callable[[str], None],
    sleep: Callable[[float], None],
) -> str | None:
    """Set the AdminComment of the job's latest record once it exists, with the energy of earlier
    attempts added.

    A requeued job has a record for each attempt, the next one from its start on. Return the
    comment; None if another program has written one. Raises SlurmError.
    """
    give_up_s = time.monotonic() + RECORD_WAIT_S
    while True:
        try:
            with _comments_locked():
                return _write_once(job, energy, attempt, log)
        except SlurmError:
            if time.monotonic() > give_up_s:
                raise
        sleep(_RETRY_S)


def _write_once(
    job: PrologJob, energy: EnergyComment, attempt: int, log: Callable[[str], None]
) -> str | None:
    comments = _comments(job)
    before = comments[-1] if comments else ""
    if before and not before.startswith(PREFIX):
        stated = "unknown" if energy.energy_j.value is None else energy.text
        log(
            f"job {job.id} has an AdminComment of another program, which is kept; its energy: "
            f"{stated}"
        )
        return None
    written = [found for comment in comments if (found := EnergyComment.parse(comment))]
    note = ""
    if attempt == job.restarts and any(found.attempts >= attempt for found in written):
        # the latest run belongs to an earlier attempt, whose comment exists
        attempt += 1
        if any(found.attempts >= attempt for found in written):
            return before or None
        note = f"no energy of attempt {attempt}: no node has a run of it"
        energy = unknown_attempts(energy.nodes)
    earlier = [found for found in written if found.attempts < attempt]
    total = energy.after(earlier[-1] if earlier else None, attempt)
    if total.energy_j.value is None:
        return None
    where = ("where", f"jobid={job.database_id}", f"cluster={job.cluster}")
    run_slurm_command(
        "sacctmgr",
        "-i",
        "modify",
        "job",
        *where,
        "set",
        f"AdminComment={total.text}",
        timeout_s=_DATABASE_TIMEOUT_S,
    )
    if note:
        log(note)
    return total.text


def _comments(job: PrologJob) -> list[str]:
    """Return the AdminComment of each attempt's record, the latest one last. Raises SlurmError."""
    words = (
        "sacct",
        "-n",
        "-P",
        "-X",
        "-D",
        "-M",
        job.cluster,
        "-j",
        job.database_id,
        "-o",
        "jobidraw,admincomment",
    )
    text = run_slurm_command(*words, timeout_s=_DATABASE_TIMEOUT_S)
    rows = [line.partition("|") for line in text.splitlines()]
    # sacct lists the other tasks of an array
    return [comment for number, _, comment in rows if number == job.id]


@contextmanager
def _comments_locked() -> Iterator[None]:
    """Hold the lock under which comments are read and written: two attempts of a job may end at
    about the same time.

    The log file is locked, for which a process needs the right to write it. Other users cannot hold
    this lock.
    """
    path = os.environ.get(LOG) or DEFAULT_LOG
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise SlurmError(
            f"cannot write {path}: {error.strerror}; set {LOG} to a file that SlurmUser can write"
        ) from error
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
