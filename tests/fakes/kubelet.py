"""Pod-resources API v1 of a kubelet: a gRPC server on a Unix socket that encodes protobuf by
hand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def field_of(number: int, value: str | bytes) -> bytes:
    """Return a length-delimited field."""
    text = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(text)) + text


def number_of(number: int, value: int) -> bytes:
    """Return a field with a number."""
    return _varint(number << 3) + _varint(value)


def devices(resource: str, *ids: str) -> bytes:
    """Return devices with a topology (3), which the exporter ignores."""
    return (
        field_of(1, resource)
        + b"".join(field_of(2, id_) for id_ in ids)
        + field_of(3, field_of(1, b"\x08\x01"))
    )


def claim(namespace: str, name: str, *of_devices: bytes) -> bytes:
    """Return the devices of a ResourceClaim (DynamicResource), for `container(claims=…)`."""
    return (
        field_of(2, name)
        + field_of(3, namespace)
        + b"".join(field_of(4, one) for one in of_devices)
    )


def claimed(pool: str, device: str, driver: str = "gpu.nvidia.com") -> bytes:
    """Return a device of a claim (ClaimResource) with the CDI device and share id that the exporter
    ignores.
    """
    cdi = field_of(1, field_of(1, f"k8s.{driver}/claim=7f3a-{device}"))
    return cdi + field_of(2, driver) + field_of(3, pool) + field_of(4, device) + field_of(5, "9c1e")


def claimed_by_cdi(name: str) -> bytes:
    """Return a device of a claim as a kubelet before 1.31 has it, with the name of the CDI device
    only.
    """
    return field_of(1, field_of(1, name))


def container(name: str, *of_devices: bytes, claims: tuple[bytes, ...] = ()) -> bytes:
    """Return a container with the numbers of its CPUs (4, packed)."""
    fields = (
        field_of(1, name)
        + b"".join(field_of(2, one) for one in of_devices)
        + field_of(4, b"\x01\x02\x80\x01")
    )
    return fields + b"".join(field_of(5, one) for one in claims)


def pod(namespace: str, name: str, *containers: bytes) -> bytes:
    return (
        field_of(1, name)
        + field_of(2, namespace)
        + b"".join(field_of(3, one) for one in containers)
    )


@dataclass
class FakeKubelet:
    """Kubelet that responds after `delay_s`, or fails with `refusal`."""

    pods: list[bytes] = field(default_factory=list)
    delay_s: float = 0.0
    refusal: grpc.StatusCode | None = None
    answer: bytes | None = None
    calls: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    def list(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        until = time.monotonic() + self.delay_s
        while time.monotonic() < until and not self.released.wait(0.05):
            pass
        if self.refusal:
            context.abort(self.refusal, "the API is\nswitched off")
        return (
            b"".join(field_of(1, one) for one in self.pods) if self.answer is None else self.answer
        )


@contextmanager
def kubelet_server(socket: Path, kubelet: FakeKubelet) -> Iterator[FakeKubelet]:
    """Serve, and remove the socket at the end, as a kubelet does when it restarts."""
    pool = ThreadPoolExecutor(4)
    server = grpc.server(pool)
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(kubelet.list)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),)
    )
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield kubelet
    finally:
        kubelet.released.set()
        server.stop(None).wait()
        pool.shutdown()
        socket.unlink(missing_ok=True)
