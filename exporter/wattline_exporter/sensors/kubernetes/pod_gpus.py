"""Assignment of GPUs to pods by device plugins and by Dynamic Resource Allocation."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from wattline_exporter.sensors.kubernetes.resource_slices import ClaimDevice, ResourceSlices
from wattline_exporter.sensors.readings import SourceError

MAX_NAMED_DEVICES = 3
UnresolvedDevice = Literal["unknown_gpu", "no_slice", "no_api"]
"""Reason of an unknown GPU: NVML does not list it, no ResourceSlice has it, or slices cannot be
read.
"""
# Time-slicing device plugins number the replicas of a GPU: GPU-…::3, on GKE nvidia0/vgpu3.
_REPLICA = re.compile(r"::\d+$|/vgpu\d+$")
_NO_SERVER = (
    "no address of the Kubernetes API server, which names the GPUs of claims; "
    "run the exporter in a pod, or set --kubernetes.api"
)


@dataclass(frozen=True, slots=True)
class PodDevice:
    """A container and one of its GPUs: the device plugin's id, or a device of a claim.

    `claim`: NAMESPACE/NAME of the ResourceClaim. An old kubelet names the claim, but not its
    device.
    """

    namespace: str
    pod: str
    container: str
    device: str | ClaimDevice | None
    claim: str = ""


class DeviceLister(Protocol):
    """The kubelet's list of devices. `devices` blocks and raises SourceError."""

    def devices(self) -> list[PodDevice]: ...


@dataclass(frozen=True, slots=True)
class PodGpu:
    """A container and the UUID of one of its GPUs or MIG instances.

    `gpu`: index of the GPU; `parent`: UUID of the GPU.
    """

    namespace: str
    pod: str
    container: str
    gpu: str
    uuid: str
    parent: str


@dataclass
class PodGpus:
    """GPUs of containers, and devices whose GPU is unknown, by reason. `failure`: cause and remedy
    of no_api.
    """

    gpus: tuple[PodGpu, ...] = ()
    unresolved: dict[UnresolvedDevice, list[str]] = field(default_factory=lambda: defaultdict(list))
    failure: str = ""

    def problems(self) -> tuple[str, ...]:
        """Return the cause and the remedy of each reason, one line each."""
        texts: dict[UnresolvedDevice, str] = {
            "unknown_gpu": "unknown GPUs assigned to pods: {}; compare with nvidia-smi -L, and "
            "check that NVML works",
            "no_slice": "GPUs of claims without a UUID: {}; compare with kubectl get "
            "resourceslices -o yaml",
            "no_api": f"GPUs of claims are unknown: {{}}; {self.failure}",
        }
        return tuple(
            texts[reason].format(", ".join(sorted(set(names))[:MAX_NAMED_DEVICES]))
            for reason, names in self.unresolved.items()
        )


class PodGpuAssignments:
    """GPUs that the kubelet assigned to containers.

    `gpus` returns the index of each GPU by UUID, for a MIG instance that of its parent; None
    accepts all. `slices` is None where the address of the API server is unknown.
    """

    def __init__(
        self,
        resources: DeviceLister,
        gpus: Callable[[], Mapping[str, str]] | None,
        slices: ResourceSlices | None = None,
    ) -> None:
        self._resources = resources
        self._gpus = gpus
        self._slices = slices

    def read(self) -> PodGpus:
        """Return all assignments. Raises SourceError where the kubelet cannot be read."""
        devices = self._resources.devices()
        result = PodGpus()
        claimed = self._claimed(devices, result)
        gpus = self._gpus() if self._gpus else None
        parents = {
            index: uuid for uuid, index in (gpus or {}).items() if not uuid.startswith("MIG-")
        }
        found: dict[PodGpu, None] = {}
        for assigned in devices:
            device = assigned.device
            if isinstance(device, str):
                uuid = _REPLICA.sub("", device)
            elif device is not None and device in claimed:
                uuid = claimed[device]
            else:
                name = "/".join(device) if device else assigned.claim
                result.unresolved["no_api" if result.failure else "no_slice"].append(name)
                continue
            if gpus is not None and uuid not in gpus:
                if uuid.removeprefix("nvidia") not in parents:
                    result.unresolved["unknown_gpu"].append(uuid)
                    continue
                uuid = parents[uuid.removeprefix("nvidia")]
            index = gpus[uuid] if gpus is not None else ""
            container = (assigned.namespace, assigned.pod, assigned.container)
            found[PodGpu(*container, index, uuid, parents.get(index, uuid))] = None
        result.gpus = tuple(found)
        return result

    def _claimed(self, devices: list[PodDevice], result: PodGpus) -> Mapping[ClaimDevice, str]:
        wanted = {device.device for device in devices if isinstance(device.device, ClaimDevice)}
        if not wanted:
            return {}
        if self._slices is None:
            result.failure = _NO_SERVER
            return {}
        try:
            return self._slices.uuids(wanted)
        except SourceError as error:
            result.failure = str(error)
            return {}
