"""Assignment of GPUs to pods, from the kubelet's pod-resources API (v1).

https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#monitoring-device-plugin-resources
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf.message import DecodeError

from exporter.contract.metrics import GPU_POD_INFO
from exporter.model import Batch, Reading, SourceError
from exporter.sources.pod_resources_pb2 import ListPodResourcesResponse

METHOD = "/v1.PodResourcesLister/List"
TIMEOUT_S = 3.0
MAX_BYTES = 16 << 20
"""Limit of a response, the same as the kubelet's."""
MAX_NAMED_DEVICES = 3

_RESOURCE = re.compile(r"nvidia\.com/(gpu|gpu\.shared|mig-.+)")
# Time-slicing device plugins number the replicas of a GPU: GPU-…::3, on GKE nvidia0/vgpu3.
_REPLICA = re.compile(r"::\d+$|/vgpu\d+$")


@dataclass(frozen=True, slots=True)
class PodDevice:
    """A container and the id of one of its devices."""

    namespace: str
    pod: str
    container: str
    device: str


class KubeletSource:
    """Source of pods; `gpus` returns the index of each GPU by UUID, for a MIG instance that of its parent."""

    name = "kubelet"

    def __init__(self, socket: Path, gpus: Callable[[], Mapping[str, str]]) -> None:
        self._socket = socket
        self._gpus = gpus

    def read(self) -> Batch:
        gpus = self._gpus()
        by_index = {index: uuid for uuid, index in gpus.items() if not uuid.startswith("MIG-")}
        readings: dict[Reading, None] = {}
        unknown: set[str] = set()
        for assigned in self._assignments():
            device = _REPLICA.sub("", assigned.device)
            uuid = device if device in gpus else by_index.get(device.removeprefix("nvidia"))
            if uuid is None:
                unknown.add(device)
                continue
            labels = (gpus[uuid], uuid, assigned.namespace, assigned.pod, assigned.container)
            readings[Reading(GPU_POD_INFO, labels, 1.0)] = None
        return Batch(tuple(readings), problems=_problems(unknown))

    def _assignments(self) -> list[PodDevice]:
        """Call the API on a new channel, which keeps no state of a kubelet that was restarted."""
        self._check_socket()
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", MAX_BYTES))
        with grpc.insecure_channel(f"unix:{self._socket.absolute()}", options=options) as channel:
            call = channel.unary_unary(
                METHOD, request_serializer=bytes, response_deserializer=ListPodResourcesResponse.FromString
            )
            try:
                return list(_of_gpus(call(b"", timeout=TIMEOUT_S)))
            except grpc.RpcError as error:
                raise _failed(self._socket, error) from error
            except DecodeError as error:
                raise SourceError(
                    f"cannot parse the response of {self._socket}: not the pod-resources API v1",
                    "check that it is the kubelet's socket",
                ) from error

    def _check_socket(self) -> None:
        """Raise SourceError for a missing or unreadable socket; gRPC reports both as unavailable."""
        try:
            self._socket.stat()
        except FileNotFoundError as error:
            raise SourceError(
                f"cannot open {self._socket}: no such socket",
                "check that the kubelet runs; in a pod, mount the host's folder /var/lib/kubelet/pod-resources",
            ) from error
        except OSError as error:
            raise _denied(self._socket, error) from error
        if not os.access(self._socket, os.R_OK | os.W_OK):
            raise _denied(self._socket, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _denied(socket: Path, error: OSError) -> SourceError:
    return SourceError(f"cannot open {socket}: {error.strerror}", "run the exporter's container as root, the owner")


def _failed(socket: Path, error: grpc.RpcError) -> SourceError:
    code = error.code() if isinstance(error, grpc.Call) else None
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return SourceError(
            f"cannot read {socket}: no response from the kubelet within {TIMEOUT_S:g} s", "see: journalctl -u kubelet"
        )
    if code is grpc.StatusCode.UNAVAILABLE:
        return SourceError(f"cannot connect to {socket}: no process listens", "see: systemctl status kubelet")
    details = error.details() if isinstance(error, grpc.Call) else ""
    text = " ".join(f"{code.name if code else 'error'} {details or ''}".split())
    return SourceError(f"cannot read {socket}: the kubelet answered {text}", "see: journalctl -u kubelet")


def _of_gpus(response: ListPodResourcesResponse) -> Iterable[PodDevice]:
    for pod in response.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                if _RESOURCE.fullmatch(devices.resource_name):
                    for device in devices.device_ids:
                        yield PodDevice(pod.namespace, pod.name, container.name, device)


def _problems(unknown: set[str]) -> tuple[str, ...]:
    if not unknown:
        return ()
    names = ", ".join(sorted(unknown)[:MAX_NAMED_DEVICES])
    return (f"unknown GPUs assigned to pods: {names}; compare with nvidia-smi -L, and check that NVML works",)
