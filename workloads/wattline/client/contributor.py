"""Contribution of processes to a run: work totals, control groups and pids."""

from __future__ import annotations

import functools
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from wattline.client.api import (
    ANSWER_WITHIN_S,
    Api,
    ExporterError,
    JobApi,
    UnreachableError,
    is_temporary,
)
from wattline.client.messages import log_message_once
from wattline.client.values import valid_work
from wattline.contract.api import MAX_AMOUNT, MAX_UNITS

_POST_EVERY_S = 0.25
_RETRY_S = 1.0
_THREAD_WAITS_S = 5.0
SLICE = "wattline.slice"
_OWN_CGROUP = Path("/proc/self/cgroup")
CGROUP = "WATTLINE_CGROUP"
PIDS_REJECTION = "WATTLINE_PIDS_REJECTION"
"""Why the exporter rejected the runner's pid; the clients in the job do not print the same reason
again.
"""
_PID_NAMESPACE = Path("/proc/self/ns/pid")


def contributor_name(environ: Mapping[str, str]) -> str:
    """Return a name of this process that is unique over all nodes and over reused pids."""
    return _name(os.getpid(), environ.get("RANK"))


@functools.cache
def _name(pid: int, rank: str | None) -> str:
    part = "" if rank is None else f"rank-{rank}-"
    return f"{socket.gethostname()[:64]}-{part}{pid}-{secrets.token_hex(3)}"


class Contributor:
    """Work totals and phases of a process, and the thread that posts them.

    The thread renews the run's lease every third of `lease_s`. After a downtime of the exporter it
    repeats the lost reports.
    """

    def __init__(self, api: Api, run_id: str, name: str, lease_s: float | None = None) -> None:
        self._api = (
            api if isinstance(api, JobApi) else JobApi(api.address, api.timeout_s, api.token_file)
        )
        self._path = f"/runs/{run_id}"
        self.name = name
        self._renew_every_s = lease_s / 3 if lease_s else None
        self._lock = threading.Lock()
        self._posting = threading.Lock()
        self._totals: dict[str, float] = {}
        self._unposted = False
        self._unposted_phase: str | None = None
        self.late_phases = 0
        """Number of phase changes that the exporter did not accept at their time."""
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, amounts: Mapping[str, float]) -> None:
        with self._lock:
            for unit, amount in amounts.items():
                if unit not in self._totals and len(self._totals) >= MAX_UNITS:
                    log_message_once(
                        f"cannot count work {unit}: a run has at most {MAX_UNITS} units; use fewer "
                        "units"
                    )
                    continue
                total = self._totals.get(unit, 0.0) + amount
                if total > MAX_AMOUNT:
                    log_message_once(
                        f"cannot count work {unit}: its total is larger than 1e300; use a larger "
                        "unit"
                    )
                    continue
                self._totals[unit] = total
            self._unposted = True
        self.start()
        self._wake.set()

    def change_phase(self, name: str) -> None:
        """Post the work so far, which belongs to the previous phase, then the phase.

        A phase that the exporter does not accept now is posted later by the thread, unless another
        one has followed.
        """
        with self._lock:
            self._unposted_phase = name
        if (error := self._post_now()) is None:
            return
        self.late_phases += 1
        log_message_once(
            f"cannot report the phase: {error}; the phases of this run are incomplete, and its "
            "result "
            "phases_not_recorded counts the missing changes"
        )
        self.start()
        self._wake.set()

    def declare(self, unit: str) -> None:
        """Declare the primary unit of the run, by a first report of it without work; see
        `wattline.contract.work`.
        """
        amounts = valid_work({unit: 0.0})
        with self._lock:
            if self._totals or not amounts:
                return  # the run has its unit
        try:
            self._api.post(f"{self._path}/work", {"contributor": self.name, **amounts})
        except ExporterError as error:
            log_message_once(f"cannot declare the unit of work {unit}: {error}")

    def start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._closing.clear()
                self._thread = threading.Thread(
                    target=self._post_loop, name="wattline", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Stop the thread and post the rest; `add` starts it again."""
        with self._lock:
            thread = self._thread
            self._thread = None
        self._closing.set()
        self._wake.set()
        if thread is not None:
            thread.join(0.0 if self._api.hangs else ANSWER_WITHIN_S)
        self.flush()

    def flush(self) -> None:
        """Try to post all that was added so far."""
        self._post_now()

    def _post_now(self) -> ExporterError | None:
        """Post the remaining reports, unless the exporter hangs; return the error."""
        if not self._api.hangs and not self._posting.acquire(timeout=ANSWER_WITHIN_S):
            self._api.note_hang()  # the thread still waits for an answer
        if self._api.hangs:
            return self._api.hang_error
        try:
            return self._post(self._api, with_work=self._unposted)
        finally:
            self._posting.release()

    def _post_loop(self) -> None:
        error: ExporterError | None = None
        while not self._closing.is_set():
            self._wake.wait(_RETRY_S if is_temporary(error) else self._renew_every_s)
            self._wake.clear()
            if self._closing.is_set():
                return
            with self._posting:
                error = self._post(self._api.persistent(_THREAD_WAITS_S), with_work=True)
            self._closing.wait(_RETRY_S if is_temporary(error) else _POST_EVERY_S)

    def _post(self, api: Api, *, with_work: bool) -> ExporterError | None:
        """Post the totals and the phase. They may be posted twice; after a failure the next call
        posts them.
        """
        with self._lock:
            body = {"contributor": self.name, **self._totals} if self._totals else {}
            phase = self._unposted_phase
            self._unposted = self._unposted and not with_work
        failure: ExporterError | None = None
        try:
            if with_work:
                api.post(f"{self._path}/work", body)
        except ExporterError as error:
            with self._lock:
                self._unposted = bool(body)
            log_message_once(f"cannot report work: {error}")
            failure = error
        return (
            failure
            if phase is None or isinstance(failure, UnreachableError)
            else self._post_phase(api, phase)
        )

    def _post_phase(self, api: Api, phase: str) -> ExporterError | None:
        failure: ExporterError | None = None
        try:
            api.post(f"{self._path}/phase", {"name": phase})
        except ExporterError as error:
            failure = error
        with self._lock:
            if self._unposted_phase == phase and not is_temporary(failure):
                self._unposted_phase = None
        return failure


def processes_body(*pids: int) -> dict[str, object]:
    """Return the request body that names processes, with the namespace of the pids."""
    try:
        return {"pids": list(pids), "pid_namespace": _PID_NAMESPACE.stat().st_ino}
    except OSError:
        return {"pids": list(pids)}


def run_cgroup(environ: Mapping[str, str]) -> str | None:
    """Return the control group to attribute to the run: that of the environment (`pod:UID`), else
    the own scope.
    """
    return environ.get(CGROUP) or own_scope_cgroup()


def own_scope_cgroup(cgroup_file: Path = _OWN_CGROUP) -> str | None:
    """Return the cgroup v2 path of this process if it is in a scope of `SLICE`, else None."""
    try:
        lines = cgroup_file.read_text().splitlines()
    except OSError:
        return None
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    names = paths[0].split("/") if paths else []
    return paths[0] if SLICE in names and names[-1].endswith(".scope") else None


class RunMembership:
    """Registration of processes with a run. Errors of type `tolerated` are passed to `log` and do
    not stop the job.

    A pod's pids are rejected, since they differ outside of it. If the control group is registered,
    the pids are not needed and the rejection is not logged.
    """

    def __init__(
        self,
        api: Api,
        run_id: str,
        group: str | None,
        tolerated: type[ExporterError],
        log: Callable[[str], None],
    ) -> None:
        self.rejection = os.environ.get(PIDS_REJECTION, "")
        """Last rejection of a pid that was logged, here or by the runner; it is not logged again.
        """
        self._api = api
        self._path = f"/runs/{run_id}/processes"
        self._tolerated = tolerated
        self._log = log
        self._by_group = False
        if group:
            try:
                api.post(self._path, {"cgroup": group})
                self._by_group = True
            except tolerated as error:
                log(
                    f"cannot register control group {group}: {error}; the run is attributed by its "
                    "pids"
                )

    def add(self, pid: int, is_gone: Callable[[], bool] = lambda: False) -> None:
        try:
            self._api.post(self._path, processes_body(pid))
        except self._tolerated as error:
            if not self._by_group and not is_gone() and str(error) != self.rejection:
                self.rejection = str(error)
                self._log(f"cannot register process {pid} with the run: {error}")
