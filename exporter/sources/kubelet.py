"""Which pod has which GPU, from the kubelet's pod-resources API (v1), over its Unix socket.

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
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from exporter.contract.metrics import GPU_POD_INFO
from exporter.model import Batch, Reading, SourceError

METHOD = "/v1.PodResourcesLister/List"
WITHIN_S = 3.0
MOST_BYTES = 16 << 20
"""The kubelet's own limit of an answer."""
MOST_NAMED = 3

_RESOURCE = re.compile(r"nvidia\.com/(gpu|gpu\.shared|mig-.+)")
# A device plugin that shares a GPU in time numbers its replicas: GPU-…::3; GKE's numbers them nvidia0/vgpu3.
_REPLICA = re.compile(r"::\d+$|/vgpu\d+$")
# What is read of the messages, by field number: https://github.com/kubernetes/kubelet/tree/master/pkg/apis/podresources
_MESSAGES: dict[str, list[tuple[str, int, str, bool]]] = {
    "ListPodResourcesRequest": [],
    "ListPodResourcesResponse": [("pod_resources", 1, "PodResources", True)],
    "PodResources": [
        ("name", 1, "", False),
        ("namespace", 2, "", False),
        ("containers", 3, "ContainerResources", True),
    ],
    "ContainerResources": [("name", 1, "", False), ("devices", 2, "ContainerDevices", True)],
    "ContainerDevices": [("resource_name", 1, "", False), ("device_ids", 2, "", True)],
}


@dataclass(frozen=True, slots=True)
class Assignment:
    """A container has the device that its plugin calls so."""

    namespace: str
    pod: str
    container: str
    device: str


def message_class(name: str) -> type[Message]:
    """A message of the API as protobuf's own class, from a pool of its own."""
    file = FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for field, number, kind, is_repeated in fields:
            described.field.add(
                name=field,
                number=number,
                type=FieldDescriptorProto.TYPE_MESSAGE if kind else FieldDescriptorProto.TYPE_STRING,
                type_name=f".v1.{kind}" if kind else None,
                label=FieldDescriptorProto.LABEL_REPEATED if is_repeated else FieldDescriptorProto.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}"))


class KubeletSource:
    """`gpus` gives, at each read, the index of the GPU by UUID: of a MIG instance its parent's."""

    name = "kubelet"

    def __init__(self, socket: Path, gpus: Callable[[], Mapping[str, str]]) -> None:
        self._socket = socket
        self._gpus = gpus
        self._answer = message_class("ListPodResourcesResponse")

    def read(self) -> Batch:
        gpus = self._gpus()
        by_index = {index: uuid for uuid, index in gpus.items() if not uuid.startswith("MIG-")}
        readings: dict[Reading, None] = {}
        unknown: set[str] = set()
        for given in self._assignments():
            device = _REPLICA.sub("", given.device)
            uuid = device if device in gpus else by_index.get(device.removeprefix("nvidia"))
            if uuid is None:
                unknown.add(device)
                continue
            labels = (gpus[uuid], uuid, given.namespace, given.pod, given.container)
            readings[Reading(GPU_POD_INFO, labels, 1.0)] = None
        return Batch(tuple(readings), problems=_problems(unknown))

    def _assignments(self) -> list[Assignment]:
        """A channel for each call: it holds nothing of a kubelet that has been restarted meanwhile."""
        self._look_at_socket()
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", MOST_BYTES))
        with grpc.insecure_channel(f"unix:{self._socket.absolute()}", options=options) as channel:
            call = channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=self._answer.FromString)
            try:
                return list(_of_gpus(call(b"", timeout=WITHIN_S)))
            except grpc.RpcError as error:
                raise _failed(self._socket, error) from error
            except DecodeError as error:
                raise SourceError(
                    f"{self._socket} did not answer as the pod-resources API v1 does", "is it the kubelet's?"
                ) from error

    def _look_at_socket(self) -> None:
        """Tells apart what gRPC calls unavailable. Raises SourceError."""
        try:
            self._socket.stat()
        except FileNotFoundError as error:
            raise SourceError(
                f"there is no socket {self._socket}",
                "is the kubelet running? in a pod, mount the host's folder /var/lib/kubelet/pod-resources",
            ) from error
        except OSError as error:
            raise _denied(self._socket, error) from error
        if not os.access(self._socket, os.R_OK | os.W_OK):
            raise _denied(self._socket, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _denied(socket: Path, error: OSError) -> SourceError:
    return SourceError(f"cannot open {socket}: {error.strerror}", "it is root's: run the exporter's container as root")


def _failed(socket: Path, error: grpc.RpcError) -> SourceError:
    code = error.code() if isinstance(error, grpc.Call) else None
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return SourceError(
            f"the kubelet did not answer at {socket} within {WITHIN_S:g} s", "see: journalctl -u kubelet"
        )
    if code is grpc.StatusCode.UNAVAILABLE:
        return SourceError(f"no one listens at {socket}", "is the kubelet running? see: systemctl status kubelet")
    details = error.details() if isinstance(error, grpc.Call) else ""
    text = " ".join(f"{code.name if code else 'error'} {details or ''}".split())
    return SourceError(f"the kubelet at {socket} answers {text}", "see: journalctl -u kubelet")


def _of_gpus(answer: Message) -> Iterable[Assignment]:
    for pod in answer.pod_resources:  # type: ignore[attr-defined]  # a class made from a descriptor, as are all below
        for container in pod.containers:
            for devices in container.devices:
                if _RESOURCE.fullmatch(devices.resource_name):
                    for device in devices.device_ids:
                        yield Assignment(pod.namespace, pod.name, container.name, device)


def _problems(unknown: set[str]) -> tuple[str, ...]:
    if not unknown:
        return ()
    named = ", ".join(sorted(unknown)[:MOST_NAMED])
    return (f"pods have devices that are no GPU of this exporter: {named}; see: nvidia-smi -L, and is NVML up?",)
