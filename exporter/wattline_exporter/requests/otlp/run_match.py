"""Run of a request, from the attributes of its span and resource."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from wattline_exporter.requests.otlp.attributes import (
    CONTAINER_ID,
    HOST_NAME,
    POD_UID,
    PROCESS_IDS,
    RUN_ID,
    Values,
)
from wattline_exporter.runs.run_record import RunRecord
from wattline_exporter.sensors.processes.cgroup_paths import parse_cgroup_path
from wattline_exporter.sensors.processes.cgroups import pids_in_cgroup
from wattline_exporter.sensors.processes.procfs import read_stat

if TYPE_CHECKING:  # numpy is imported with the first request
    from wattline_exporter.requests.division.arrays import FloatArray, Mask
    from wattline_exporter.requests.otlp.body import SpanSource

MAX_ANCESTORS = 64
_REMEDY = "set OTEL_RESOURCE_ATTRIBUTES=wattline.run_id=RUN_ID for the server"


class NoRunError(Exception):
    """A request that belongs to no run; the text has the cause and the remedy."""


class RunMatcher:
    """Runs in the memory of the exporter, open ones and those that ended a short time ago."""

    def __init__(
        self,
        runs: Callable[[], Iterable[RunRecord]],
        *,
        host: str | None = None,
        ancestors: Callable[[int], Sequence[int]] | None = None,
        pids_of: Callable[[str], set[int]] = pids_in_cgroup,
    ) -> None:
        self._runs = runs
        self._host = host or socket.gethostname()
        self._ancestors = ancestors or process_ancestors
        self._pids_of = pids_of

    def groups(
        self, started_at: FloatArray, ended_at: FloatArray, source: SpanSource
    ) -> Iterator[tuple[str | NoRunError, Mask]]:
        """Yield the runs of requests of one source, each with the mask of its requests, or why they
        have none.
        """
        import numpy as np

        runs = [
            (run.started_at, np.inf if run.ended_at is None else run.ended_at)
            for run in self._runs()
        ]
        is_open = np.array([(ended_at >= begin) & (started_at <= end) for begin, end in runs])
        is_open = is_open.reshape(len(runs), len(started_at))
        left = np.ones(len(started_at), dtype=bool)
        while left.any():
            first = int(np.argmax(left))
            group = left & (is_open == is_open[:, [first]]).all(axis=0)
            left &= ~group
            found: str | NoRunError
            try:
                found = self.find(
                    started_at[first], ended_at[first], source.resource, source.run_id
                )
            except NoRunError as error:
                found = error
            yield found, group

    def find(self, started_at: float, ended_at: float, resource: Values, run_id: str | None) -> str:
        """Return the id of the run of a request. Raises NoRunError."""
        named = run_id or str(resource.get(RUN_ID, ""))
        runs = list(self._runs())
        if named:
            if any(run.run_id == named for run in runs):
                return named
            raise NoRunError(f"no run {named!r} is open; begin it, or correct wattline.run_id")
        runs = [run for run in runs if _covers(run, started_at, ended_at)]
        for key, of_run in ((POD_UID, _pod_of), (CONTAINER_ID, _container_of)):
            if identity := str(resource.get(key, "")).lower():
                found = [run for run in runs if of_run(run) == identity]
                if len(found) == 1:
                    return found[0].run_id
        if POD_UID in resource or CONTAINER_ID in resource:
            raise NoRunError(
                "no run of the pod or container that the resource names was open; use "
                f"--runs.discover, or {_REMEDY}"
            )
        host = str(resource.get(HOST_NAME, self._host))
        if host != self._host:
            raise NoRunError(
                f"the spans are of host {host[:80]!r}, not of {self._host!r}; {_REMEDY}"
            )
        return self._by_process(runs, resource) or _only(runs)

    def _by_process(self, runs: list[RunRecord], resource: Values) -> str | None:
        text = next((str(resource[key]) for key in PROCESS_IDS if key in resource), "")
        if len(runs) < 2 or not (text.isascii() and text.isdecimal() and len(text) < 10):
            return None
        pids = {int(text), *self._ancestors(int(text))}
        found = [
            run
            for run in runs
            if any(process.pid in pids for process in run.processes)
            or (run.cgroup and int(text) in self._pids_of(run.cgroup))
        ]
        inner = [run for run in found if not run.discovered] or found
        return inner[0].run_id if len(inner) == 1 else None


def _only(runs: list[RunRecord]) -> str:
    if len(runs) == 1:
        return runs[0].run_id
    if not runs:
        raise NoRunError(f"no run was open at the time of the request; begin one, or {_REMEDY}")
    raise NoRunError(f"{len(runs)} runs were open at the time of the request; {_REMEDY}")


def _covers(run: RunRecord, started_at: float, ended_at: float) -> bool:
    """Return True if the request and the run overlap in time."""
    return ended_at >= run.started_at and (run.ended_at is None or started_at <= run.ended_at)


def _pod_of(run: RunRecord) -> str:
    if run.discovered:
        return run.discovered.id if run.discovered.kind == "kubernetes" else ""
    return parse_cgroup_path(run.cgroup).pod_uid if run.cgroup else ""


def _container_of(run: RunRecord) -> str:
    if run.discovered and run.discovered.kind == "container":
        return run.discovered.id
    return parse_cgroup_path(run.cgroup).container if run.cgroup else ""


def process_ancestors(pid: int) -> list[int]:
    """Return the parents of a process, the nearest first; empty for an unknown process."""
    found: list[int] = []
    while len(found) < MAX_ANCESTORS and (stat := read_stat(pid)) and stat.parent > 1:
        pid = stat.parent
        found.append(pid)
    return found
