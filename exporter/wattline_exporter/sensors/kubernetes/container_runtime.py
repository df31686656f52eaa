"""Exit codes of containers, from the container runtime's socket (CRI v1, and containerd's own
tasks).
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from wattline_exporter.sensors.kubernetes.container_runtime_pb2 import (
    CONTAINER_EXITED,
    Container,
    ContainerFilter,
    ContainerStatusRequest,
    ContainerStatusResponse,
    ListContainersRequest,
    ListContainersResponse,
    ListNamespacesRequest,
    ListNamespacesResponse,
    WaitRequest,
    WaitResponse,
)
from wattline_exporter.sensors.kubernetes.pods import Pod
from wattline_exporter.sensors.readings import SourceError

TIMEOUT_S = 2.0
RETRY_S = 1.0
"""Time between two attempts to wait for an exit, as while containerd restarts."""
_POD_UID = "io.kubernetes.pod.uid"
_CRI = "/runtime.v1.RuntimeService/"
_NAMESPACES = "/containerd.services.namespaces.v1.Namespaces/List"
_WAIT = "/containerd.services.tasks.v1.Tasks/Wait"

_Response = TypeVar("_Response", bound=Message)


class ContainerRuntime:
    """Client of one socket, with one channel that reconnects. Methods raise SourceError."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._channel: grpc.Channel | None = None

    def pod(self, uid: str) -> Pod | None:
        """Return the containers of a pod, each at its latest start; None if the runtime has none of
        it.
        """
        return self._find(ContainerFilter(label_selector={_POD_UID: uid}))

    def container(self, identity: str) -> Pod | None:
        """Return a container by its id, as a pod with that container only."""
        return self._find(ContainerFilter(id=identity))

    def _find(self, wanted: ContainerFilter) -> Pod | None:
        listed = self._call(
            _CRI + "ListContainers", ListContainersRequest(filter=wanted), ListContainersResponse
        )
        latest: dict[str, Container] = {}
        for container in sorted(listed.containers, key=lambda container: container.created_at):
            latest[container.metadata.name] = container
        if not latest:
            return None
        codes: dict[str, int | None] = dict.fromkeys(latest)
        reasons: dict[str, str] = {}
        ends: dict[str, float] = {}
        for name, container in latest.items():
            if container.state == CONTAINER_EXITED:
                request = ContainerStatusRequest(container_id=container.id)
                status = self._call(
                    _CRI + "ContainerStatus", request, ContainerStatusResponse
                ).status
                codes[name] = status.exit_code
                reasons[name] = status.reason
                ends[name] = status.finished_at / 1e9
        return Pod("", "", containers=codes, reasons=reasons, ended_at=ends)

    async def wait(self, identity: str) -> tuple[int, float] | None:
        """Return exit code and time of a container of containerd at its exit; None if it has no
        such container.

        A container of any namespace is found, as those of nerdctl and ctr, also one that is then
        removed.
        """
        while True:
            try:
                return await self._wait(identity)
            except grpc.RpcError as error:
                if _code(error) is not grpc.StatusCode.UNAVAILABLE or not self.socket.exists():
                    return None
            await asyncio.sleep(RETRY_S)

    async def _wait(self, identity: str) -> tuple[int, float] | None:
        with suppress(SourceError):  # CRI-O has no namespaces
            listed = await asyncio.to_thread(
                self._call, _NAMESPACES, ListNamespacesRequest(), ListNamespacesResponse
            )
            for namespace in listed.namespaces:
                try:
                    return await self._wait_in(namespace.name, identity)
                except grpc.RpcError as error:
                    if _code(error) is not grpc.StatusCode.NOT_FOUND:
                        raise
        return None

    async def _wait_in(self, namespace: str, identity: str) -> tuple[int, float]:
        """Return exit code and time once the container has ended. Raises RpcError."""
        call = self._open().unary_unary(
            _WAIT, request_serializer=_serialize, response_deserializer=WaitResponse.FromString
        )
        request = WaitRequest(container_id=identity)
        waiting = call.future(request, metadata=(("containerd-namespace", namespace),))
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake(_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended.set)

        waiting.add_done_callback(wake)
        try:
            await ended.wait()
        finally:
            waiting.cancel()
        exited = waiting.result()
        return exited.exit_status, exited.exited_at.seconds + exited.exited_at.nanos / 1e9

    def _call(self, method: str, request: Message, response: type[_Response]) -> _Response:
        call = self._open().unary_unary(
            method, request_serializer=_serialize, response_deserializer=response.FromString
        )
        try:
            return call(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            details = error.details() if isinstance(error, grpc.Call) else ""
            text = " ".join(f"{_code(error).name} {details or ''}".split())
            raise SourceError(
                f"cannot read {self.socket}: {text}", "check the container runtime"
            ) from error

    def _open(self) -> grpc.Channel:
        if not os.access(self.socket, os.R_OK | os.W_OK):  # gRPC reports it as unavailable
            is_there = self.socket.exists()
            cause, remedy = (
                ("permission denied", "run the exporter as root")
                if is_there
                else ("no such socket", "check that the container runtime runs")
            )
            raise SourceError(f"cannot open {self.socket}: {cause}", remedy)
        if self._channel is None:
            options = (("grpc.use_local_subchannel_pool", 1),)
            self._channel = grpc.insecure_channel(f"unix:{self.socket.absolute()}", options=options)
        return self._channel

    def close(self) -> None:
        if self._channel:
            self._channel.close()
            self._channel = None


def _code(error: grpc.RpcError) -> grpc.StatusCode:
    return error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
