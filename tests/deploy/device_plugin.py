"""Device plugin for simulated GPUs: like NVIDIA's for a kubelet, with the UUIDs of its arguments.

It speaks v1beta1 and encodes protobuf by hand:
https://github.com/kubernetes/kubelet/blob/master/pkg/apis/deviceplugin/v1beta1/api.proto
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

FOLDER = Path("/var/lib/kubelet/device-plugins")
RESOURCE = "nvidia.com/gpu"
_SOCKET = "wattline-test.sock"
_UUID = re.compile(rb"GPU-[0-9a-f-]{36}")


def _field(number: int, value: bytes) -> bytes:
    """Return a field of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(value)]) + value


def _list(_request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    """Yield all devices as healthy until the kubelet disconnects."""
    yield b"".join(
        _field(1, _field(1, uuid.encode()) + _field(2, b"Healthy")) for uuid in sys.argv[1:]
    )
    while context.is_active():
        time.sleep(1)


def _allocate(request: bytes, _context: grpc.ServicerContext) -> bytes:
    """Return the environment of the container, as NVIDIA's plugin does."""
    visible = _field(1, b"NVIDIA_VISIBLE_DEVICES") + _field(2, b",".join(_UUID.findall(request)))
    return _field(1, _field(1, visible))


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    one = grpc.unary_unary_rpc_method_handler
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "GetDevicePluginOptions": one(lambda _request, _context: b""),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(_list),
        "Allocate": one(_allocate),
    }
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)]
    )
    (FOLDER / _SOCKET).unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{FOLDER / _SOCKET}")
    server.start()
    with grpc.insecure_channel(f"unix:{FOLDER / 'kubelet.sock'}") as channel:
        register: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/v1beta1.Registration/Register"
        )
        register(
            _field(1, b"v1beta1") + _field(2, _SOCKET.encode()) + _field(3, RESOURCE.encode()),
            timeout=30,
        )
    server.wait_for_termination()


if __name__ == "__main__":
    main()
