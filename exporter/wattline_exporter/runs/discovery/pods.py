"""Pods of this node that discovered runs need: labels, assigned GPUs, exit codes."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from wattline_exporter.runs.discovery.owners import AssignedGpus
from wattline_exporter.sensors.kubernetes.pod_gpus import PodGpus
from wattline_exporter.sensors.kubernetes.pods import Pod
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.processes.cgroups import (
    is_cgroup_populated,
    pids_in_cgroup,
    pod_cgroups,
)
from wattline_exporter.sensors.processes.procfs import ProcessKey, is_process_alive, read_stat
from wattline_exporter.sensors.readings import Service, SourceError, boottime

REFRESH_S = 10.0
PODS_S = 60.0
"""Longest age of the names of pods; a new pod on a GPU and the end of a run need them earlier."""
SHORTEST_S = 0.5
"""Shortest time between two refreshes."""
AWAITED_S = 4.0
"""Longest wait for the names and GPUs of a pod; its run begins at the start of its process
nevertheless.
"""
KEPT_S = 60.0
"""Time for which a pod is known after it was deleted."""

_NAMES = "the names of pods"
_RUNTIME_PROCESSES = ("pause", "conmon")
"""Processes of a pod's cgroup that belong to the container runtime."""

_Read = TypeVar("_Read")

log = logging.getLogger(__name__)


class PodProcesses:
    """Processes of containers in the cgroups of pods; one of each is remembered, since a walk takes
    0.5 ms.
    """

    def __init__(self, is_populated: Callable[[str], bool] = is_cgroup_populated) -> None:
        self._is_populated = is_populated
        self._remembered: dict[str, ProcessKey] = {}

    def lives_in(self, path: str) -> bool:
        """Return True if a process of a container lives in the cgroup; also if all its processes
        are invisible.
        """
        remembered = self._remembered.get(path)
        if remembered and is_process_alive(remembered):
            return True
        if not self._is_populated(path):
            return False
        is_visible = False
        for stat in filter(None, map(read_stat, pids_in_cgroup(path))):
            is_visible = True
            if not stat.is_over and stat.name not in _RUNTIME_PROCESSES:
                self._remembered[path] = stat.process
                return True
        self.forget(path)
        return not is_visible

    def forget(self, path: str) -> None:
        self._remembered.pop(path, None)


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod, the UUIDs of its GPUs and the containers that hold them. `path`: its cgroup, None if
    it has none.
    """

    pod: Pod
    seen_s: float
    gpus: tuple[str, ...] = ()
    containers: frozenset[str] = frozenset()
    path: str | None = None

    def labels(self) -> dict[str, str]:
        """Return all labels of the run, before the choice of --runs.labels."""
        names = self.containers or frozenset(self.pod.containers)
        return {
            "namespace": self.pod.namespace,
            "pod": self.pod.name,
            "container": next(iter(names)) if len(names) == 1 else "",
            "owner_kind": self.pod.owner_kind,
            "owner_name": self.pod.owner_name,
            **{f"pod_label:{name}": value for name, value in self.pod.labels.items()},
            **{f"pod_annotation:{name}": value for name, value in self.pod.annotations.items()},
        }


class PodDirectory(Service):
    """Known pods by UID. GPUs are read every 10 s, pods every minute; both soon after `request`.

    All three readers block and raise SourceError. `read_gpus` is None without the kubelet's socket.
    `read_names` is read while `read_pods` fails.
    """

    def __init__(
        self,
        read_pods: Callable[[], Mapping[str, Pod]],
        read_gpus: Callable[[], PodGpus] | None = None,
        *,
        read_names: Callable[[], Mapping[str, Pod]] | None = None,
        clock: Callable[[], float] = boottime,
        find_cgroups: Callable[[], Mapping[str, str]] = pod_cgroups,
    ) -> None:
        self.read_s = float("-inf")
        """Time at which the latest refresh that read the pods began (CLOCK_BOOTTIME)."""
        self._read_pods = read_pods
        self._read_gpus = read_gpus
        self._read_names = read_names
        self._gpus = PodGpus()
        self._clock = clock
        self._find_cgroups = find_cgroups
        self._pods: dict[str, KnownPod] = {}
        self._latest: Mapping[str, Pod] = {}
        self._requested = asyncio.Event()
        self._since_s: dict[str, float] = {}
        self._failures: dict[str, str] = {}

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            is_due = self._requested.is_set() or self._clock() - self.read_s >= PODS_S
            self._requested.clear()
            await self.refresh(with_pods=is_due)
            await asyncio.sleep(SHORTEST_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S - SHORTEST_S):
                    await self._requested.wait()

    def request(self) -> None:
        """Refresh soon."""
        self._requested.set()

    async def refresh(self, *, with_pods: bool = True) -> None:
        """Read the GPUs of pods, and the pods: if `with_pods` is set, or one that has a GPU is
        unknown.

        On a failure, keep the known ones.
        """
        now_s = self._clock()
        gpus = (
            await asyncio.to_thread(self._attempt, "the GPUs of pods", self._read_gpus)
            if self._read_gpus
            else None
        )
        names = {(pod.namespace, pod.name) for pod in self._latest.values()}
        self._gpus = gpus or self._gpus
        if with_pods or any(
            (gpu.namespace, gpu.pod) not in names for gpu in (gpus.gpus if gpus else ())
        ):
            pods = await asyncio.to_thread(self._attempt, _NAMES, self._read_pods)
            if pods is None and self._read_names:
                read = await asyncio.to_thread(
                    self._attempt, "the folders of the pods' logs", self._read_names
                )
                pods = (
                    {uid: self._latest.get(uid, pod) for uid, pod in read.items()} if read else None
                )
            if pods is not None:
                self._latest = pods
                self.read_s = now_s
        known = await asyncio.to_thread(self._join, self._latest, gpus, now_s)
        kept = {uid: pod for uid, pod in self._pods.items() if now_s - pod.seen_s < KEPT_S}
        self._pods = kept | known

    def _attempt(self, subject: str, read: Callable[[], _Read]) -> _Read | None:
        """Return what `read` returns; log a failure once, until it ends or changes."""
        try:
            result = read()
        except SourceError as error:
            if self._failures.get(subject) != str(error):
                log.warning("runs of pods: %s are unknown: %s", subject, error)
            self._failures[subject] = str(error)
            return None
        if self._failures.pop(subject, None):
            log.info("runs of pods: %s are known again", subject)
        return result

    def _join(
        self, pods: Mapping[str, Pod], gpus: PodGpus | None, now_s: float
    ) -> dict[str, KnownPod]:
        assigned: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        containers: dict[tuple[str, str], set[str]] = defaultdict(set)
        for gpu in gpus.gpus if gpus else ():
            assigned[gpu.namespace, gpu.pod].setdefault(gpu.parent)
            containers[gpu.namespace, gpu.pod].add(gpu.container)
        paths = {uid: known.path for uid, known in self._pods.items() if known.path}
        if any(
            (pod.namespace, pod.name) in assigned and uid not in paths for uid, pod in pods.items()
        ):
            paths = {**self._find_cgroups(), **paths}
        known: dict[str, KnownPod] = {}
        for uid, pod in pods.items():
            before = self._pods.get(uid)
            name = (pod.namespace, pod.name)
            if gpus is None and before:
                known[uid] = replace(before, pod=pod, seen_s=now_s)
                continue
            known[uid] = KnownPod(
                pod, now_s, tuple(assigned[name]), frozenset(containers[name]), paths.get(uid)
            )
        return known

    @property
    def is_up(self) -> bool:
        """False after a failed read of the pods."""
        return _NAMES not in self._failures

    def find(self, uid: str, on: Collection[str] = ()) -> KnownPod | None:
        """Return a pod.

        While pods cannot be read, a pod that alone holds the GPUs `on` by the kubelet's list has
        its name from there.
        """
        if uid in self._pods or not on or self.is_up:
            return self._pods.get(uid)
        holders = [
            {(gpu.namespace, gpu.pod) for gpu in self._gpus.gpus if gpu.parent == uuid}
            for uuid in on
        ]
        if any(len(pods) != 1 for pods in holders) or len(set().union(*holders)) != 1:
            return None
        ((namespace, name),) = holders[0]
        held = [gpu for gpu in self._gpus.gpus if (gpu.namespace, gpu.pod) == (namespace, name)]
        gpus = tuple(dict.fromkeys(gpu.parent for gpu in held))
        return KnownPod(
            Pod(namespace, name), self._clock(), gpus, frozenset(gpu.container for gpu in held)
        )

    def awaits(self, owner: CgroupOwner) -> bool:
        """Return True while a pod that now uses a GPU was not read since; for AWAITED_S at most."""
        if owner.kind != "kubernetes":
            return False
        now_s = self._clock()
        self._since_s = {uid: s for uid, s in self._since_s.items() if now_s - s < KEPT_S}
        since_s = self._since_s.setdefault(owner.id, now_s)
        if self.read_s >= since_s or now_s - since_s > AWAITED_S:
            del self._since_s[owner.id]
            return False
        self.request()
        return True

    def assigned(self, known: Iterable[CgroupOwner]) -> dict[CgroupOwner, AssignedGpus]:
        """Return the pods that hold GPUs and have a cgroup: those `known` as they are, others as
        they were found.
        """
        owners = {owner.id: owner for owner in known if owner.kind == "kubernetes"}
        for uid, pod in self._pods.items():
            if pod.path and uid not in owners:
                owners[uid] = CgroupOwner("kubernetes", uid, pod.path)
        holders = {
            owner: self._pods[uid].gpus for uid, owner in owners.items() if uid in self._pods
        }
        return {owner: AssignedGpus(owner, gpus) for owner, gpus in holders.items() if gpus}

    async def ended(self, uid: str, until_s: float) -> KnownPod | None:
        """Return a pod whose processes have ended once its status has an outcome, or will have
        none; None if unknown.

        It has none if it was deleted, or if its source has names only.
        """
        while True:
            known = self.find(uid)
            if known is None or known.pod.outcome(known.containers) or not known.pod.containers:
                return known
            if self._clock() > until_s or known.seen_s < self.read_s:  # it was deleted
                return known
            self.request()
            await asyncio.sleep(SHORTEST_S / 2)
