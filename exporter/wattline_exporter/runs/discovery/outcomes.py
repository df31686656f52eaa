"""Outcomes of discovered runs, from the container engine, systemd and Kubernetes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from wattline.contract.api import Outcome
from wattline_exporter.runs.discovery.container_exits import ContainerExits, ContainerRuntimes
from wattline_exporter.runs.discovery.pods import PodDirectory
from wattline_exporter.sensors.kubernetes.pods import SIGTERM_CODES, Pod
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.readings import boottime

WAIT_S = 5.0
"""Longest wait for an outcome; the end of the run is the exit of its last process nevertheless."""
_STEP_S = 0.2
_PROPERTIES = "LoadState,ActiveState,SubState,Result,ExecMainExitTimestampMonotonic"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReportedEnd:
    """Outcome of a run. `note`: the exit codes of its failed containers.

    `ended_at`: Unix time of its end, at most `within_s` too early, None if it is unknown.
    """

    outcome: Outcome = "unknown"
    note: str = ""
    ended_at: float | None = None
    within_s: float = 0.0


async def unit_end(unit: str, systemctl: str = "systemctl") -> ReportedEnd:
    """Return the end of a unit that has just stopped; `unknown` if it runs again, or systemd does
    not know it.
    """
    state: Mapping[str, str] = {}
    while (
        state.get("ActiveState") not in ("inactive", "failed")
        and state.get("SubState") != "auto-restart"
    ):
        if state.get("ActiveState") in ("active", "activating", "reloading"):
            return ReportedEnd()
        await asyncio.sleep(_STEP_S if state else 0.0)  # deactivating
        state = await _show(unit, systemctl)
        if state.get("LoadState") != "loaded":
            return ReportedEnd()
    exited_us = int(state.get("ExecMainExitTimestampMonotonic") or 0)
    ended_at = time.time() - (time.monotonic() - exited_us / 1e6) if exited_us else None
    return ReportedEnd("ok" if state.get("Result") == "success" else "failed", ended_at=ended_at)


async def _show(unit: str, systemctl: str) -> Mapping[str, str]:
    """Return the unit's state; empty without systemd."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(systemctl, "show", "--property=" + _PROPERTIES, "--", unit),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return {}
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    lines = (line.partition("=") for line in output.decode(errors="replace").splitlines())
    return {name: value for name, _, value in lines}


class Outcomes:
    """Outcomes of runs whose last process has ended. `pods`: those of Kubernetes."""

    def __init__(
        self,
        pods: PodDirectory | None = None,
        containers: ContainerExits | None = None,
        runtimes: ContainerRuntimes | None = None,
    ) -> None:
        self._pods = pods
        self._runtimes = runtimes or ContainerRuntimes()
        self._containers = containers or ContainerExits(runtimes=self._runtimes)
        self._read: dict[str, asyncio.Task[Pod | None]] = {}
        """Reads of the containers of pods, by UID."""
        self._failure = ""

    @property
    def is_up(self) -> bool | None:
        """True if the latest read of a container runtime succeeded; None before the first."""
        return None if self._runtimes.failure is None else not self._runtimes.failure

    def watch(self, owners: Collection[CgroupOwner]) -> None:
        """Prepare for the ends of these owners, and of no others."""
        self._containers.watch({owner.id for owner in owners if owner.kind == "container"})
        for uid in self._read.keys() - {owner.id for owner in owners}:
            self._read.pop(uid).cancel()

    def read(self, owner: CgroupOwner) -> None:
        """Start to read the exit codes of a pod's containers, which are removed soon after the pod
        was deleted.
        """
        if owner.kind == "kubernetes":
            self._read[owner.id] = asyncio.ensure_future(
                asyncio.to_thread(self._runtimes.find, pod=owner.id)
            )

    async def find(self, owner: CgroupOwner) -> ReportedEnd:
        """Return the outcome within WAIT_S, `unknown` if none is reported by then."""
        found = ReportedEnd()
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                if owner.kind == "container":
                    exited = await self._containers.find(owner.id)
                    found = (
                        ReportedEnd(exited.outcome, exited.note, exited.ended_at)
                        if exited
                        else found
                    )
                elif owner.kind == "service":
                    found = await unit_end(owner.id)
                elif owner.kind == "kubernetes":
                    found = await self._of_pod(owner)
        failure = self._runtimes.failure or ""
        if failure and failure != self._failure:
            log.warning("outcomes of containers are unknown: %s", failure)
        self._failure = failure
        return found

    async def _of_pod(self, owner: CgroupOwner) -> ReportedEnd:
        """Return the outcome that the pod's status or the container runtime has."""
        if owner.id not in self._read:
            self.read(owner)
        read = self._read.pop(owner.id)
        known = await self._pods.ended(owner.id, boottime() + WAIT_S - 1.0) if self._pods else None
        of = known.containers if known else frozenset()
        if known and (outcome := known.pod.outcome(of)):
            return ReportedEnd(
                outcome, known.pod.failures(of), known.pod.last_end_at(of), within_s=1.0
            )
        if known and known.pod.is_interrupted:
            return ReportedEnd("interrupted")
        pod = await read
        if pod is None or (outcome := pod.outcome(of)) is None:
            return ReportedEnd()
        failed = [code for code in pod.exit_codes(of).values() if code]
        if failed and all(code in SIGTERM_CODES for code in failed):
            return ReportedEnd("interrupted", ended_at=pod.last_end_at(of))
        return ReportedEnd(outcome, pod.failures(of), pod.last_end_at(of))

    def close(self) -> None:
        self.watch(())
        self._runtimes.close()
