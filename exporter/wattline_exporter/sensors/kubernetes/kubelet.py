"""Source of the containers of GPUs."""

from __future__ import annotations

from typing import get_args

from wattline.contract.metrics import GPU_POD_INFO, POD_UNRESOLVED_DEVICES
from wattline_exporter.sensors.kubernetes.pod_gpus import PodGpuAssignments, UnresolvedDevice
from wattline_exporter.sensors.readings import Batch, Reading


class KubeletSource:
    """Source of `wattline_gpu_pod_info`."""

    name = "kubelet"

    def __init__(self, assignments: PodGpuAssignments) -> None:
        self.assignments = assignments

    def read(self) -> Batch:
        """Return the containers of GPUs. Raises SourceError."""
        read = self.assignments.read()
        pods = [
            Reading(GPU_POD_INFO, (g.gpu, g.uuid, g.namespace, g.pod, g.container), 1.0)
            for g in read.gpus
        ]
        counts = [
            Reading(POD_UNRESOLVED_DEVICES, (reason,), float(len(read.unresolved.get(reason, ()))))
            for reason in get_args(UnresolvedDevice)
        ]
        return Batch((*pods, *counts), problems=read.problems())
