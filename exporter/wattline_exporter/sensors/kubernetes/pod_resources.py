"""Devices of containers, from the kubelet's pod-resources API (v1).

https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#monitoring-device-plugin-resources
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import grpc
from google.protobuf.message import DecodeError

from wattline_exporter.sensors.kubernetes.pod_gpus import PodDevice
from wattline_exporter.sensors.kubernetes.pod_resources_pb2 import (
    ClaimResource,
    ContainerResources,
    DynamicResource,
    ListPodResourcesResponse,
)
from wattline_exporter.sensors.kubernetes.resource_slices import DRIVER, ClaimDevice
from wattline_exporter.sensors.readings import SourceError

METHOD = "/v1.PodResourcesLister/List"
TIMEOUT_S = 3.0
MAX_BYTES = 16 << 20
"""Limit of a response, the same as the kubelet's."""

_RESOURCE = re.compile(r"nvidia\.com/(gpu|gpu\.shared|mig-.+)")


class PodResources:
    """Client of the kubelet's socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def devices(self) -> list[PodDevice]:
        """Return the GPUs of all containers. Raises SourceError.

        Each call has a new channel, which keeps no state of a kubelet that was restarted.
        """
        self._check_socket()
        options = (
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", MAX_BYTES),
        )
        with grpc.insecure_channel(f"unix:{self._socket.absolute()}", options=options) as channel:
            call = channel.unary_unary(
                METHOD,
                request_serializer=bytes,
                response_deserializer=ListPodResourcesResponse.FromString,
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
        """Raise SourceError for a missing or unreadable socket; gRPC reports both as
        unavailable.
        """
        try:
            self._socket.stat()
        except FileNotFoundError as error:
            raise SourceError(
                f"cannot open {self._socket}: no such socket",
                "check that the kubelet runs; in a pod, mount the host's folder "
                "/var/lib/kubelet/pod-resources",
            ) from error
        except OSError as error:
            raise _denied(self._socket, error) from error
        if not os.access(self._socket, os.R_OK | os.W_OK):
            raise _denied(self._socket, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _denied(socket: Path, error: OSError) -> SourceError:
    return SourceError(
        f"cannot open {socket}: {error.strerror}", "run the exporter's container as root, the owner"
    )


def _failed(socket: Path, error: grpc.RpcError) -> SourceError:
    code = error.code() if isinstance(error, grpc.Call) else None
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return SourceError(
            f"cannot read {socket}: no response from the kubelet within {TIMEOUT_S:g} s",
            "see: journalctl -u kubelet",
        )
    if code is grpc.StatusCode.UNAVAILABLE:
        return SourceError(
            f"cannot connect to {socket}: no process listens", "see: systemctl status kubelet"
        )
    details = error.details() if isinstance(error, grpc.Call) else ""
    text = " ".join(f"{code.name if code else 'error'} {details or ''}".split())
    return SourceError(
        f"cannot read {socket}: the kubelet answered {text}", "see: journalctl -u kubelet"
    )


def _of_gpus(response: ListPodResourcesResponse) -> Iterator[PodDevice]:
    for pod in response.pod_resources:
        for container in pod.containers:
            for device, claim in _devices(container):
                yield PodDevice(pod.namespace, pod.name, container.name, device, claim)


def _devices(container: ContainerResources) -> Iterator[tuple[str | ClaimDevice | None, str]]:
    for devices in container.devices:
        if _RESOURCE.fullmatch(devices.resource_name):
            yield from ((device, "") for device in devices.device_ids)
    for claim in container.dynamic_resources:
        name = f"{claim.claim_namespace}/{claim.claim_name}"
        yield from ((device, name) for device in _claimed(claim))


def _claimed(claim: DynamicResource) -> Iterable[ClaimDevice | None]:
    for resource in claim.claim_resources:
        if resource.driver_name == DRIVER:
            yield ClaimDevice(resource.pool_name, resource.device_name)
        elif not resource.driver_name and _is_gpu(resource):
            yield None


def _is_gpu(resource: ClaimResource) -> bool:
    """Return True if a device without a driver's name is a GPU by its CDI name:
    k8s.gpu.nvidia.com/claim=….
    """
    return any(DRIVER in device.name for device in resource.cdi_devices)
