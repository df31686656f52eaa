"""Real containerd with its CRI, one small image and temporary storage."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from tests.fakes.kubelet import field_of, number_of
from tests.fakes.podman import root_files
from tests.servers import require

IMAGE = "localhost/tiny:1"
"""Image with BusyBox. Its command is /pause, as that of a pod's sandbox."""
_PACKAGES = "containerd runc busybox-static"
_NAMESPACES = ("k8s.io", "default")
_READY_S = 60.0
_HOST = 2
"""NamespaceMode.NODE of the CRI: the pod needs no network plugin."""
_CONF = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
disable_apparmor = true
restrict_oom_score_adj = true
sandbox_image = "{image}"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{folder}/cni"
conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
_PAUSE = """\
#!/bin/sh
mkfifo /dev/never
exec 3<>/dev/never
trap 'exit 0' TERM
read -r line <&3
"""


@dataclass(frozen=True)
class PodSandbox:
    """Pod with its sandbox. `config` is its PodSandboxConfig."""

    uid: str
    id: str
    config: bytes


@dataclass(frozen=True)
class Containerd:
    folder: Path
    channel: grpc.Channel

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    def ctr(self, *arguments: str) -> str:
        command = ["ctr", "--address", str(self.socket), *arguments]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    def pod(self, name: str = "train") -> PodSandbox:
        """Start the sandbox of a pod in a cgroup as the kubelet names it."""
        uid = str(uuid.uuid4())
        metadata = field_of(1, name) + field_of(2, uid) + field_of(3, "ml")
        host = b"".join(number_of(number, _HOST) for number in (1, 2, 3))
        linux = field_of(1, f"/kubepods/besteffort/pod{uid}") + field_of(2, field_of(1, host))
        config = field_of(1, metadata) + field_of(8, linux)
        config += b"".join(field_of(6, label) for label in _labels(name, uid))
        return PodSandbox(uid, self._call("RunPodSandbox", field_of(1, config)), config)

    def container(
        self, pod: PodSandbox, script: str, name: str = "main", attempt: int = 0, memory: int = 0
    ) -> str:
        """Start a container that runs the script, with at most `memory` bytes; return its id."""
        metadata = field_of(1, name) + number_of(2, attempt)
        config = field_of(1, metadata) + field_of(2, field_of(1, IMAGE))
        config += b"".join(field_of(3, word) for word in ("sh", "-c", script))
        config += b"".join(field_of(9, label) for label in _labels(name, pod.uid))
        if memory:
            config += field_of(15, field_of(1, number_of(4, memory)))
        identity = self._call(
            "CreateContainer", field_of(1, pod.id) + field_of(2, config) + field_of(3, pod.config)
        )
        self._call("StartContainer", field_of(1, identity))
        return identity

    def pid(self, container: str) -> int:
        """Return the pid of a container, 0 for one that has ended."""
        rows = [
            line.split()
            for space in _NAMESPACES
            for line in self.ctr("-n", space, "tasks", "list").splitlines()
        ]
        return next(
            (
                int(pid)
                for identity, pid, state in rows
                if identity == container and state == "RUNNING"
            ),
            0,
        )

    def stop(self, pod: PodSandbox) -> None:
        """End the sandbox and all containers of a pod, which keep their statuses."""
        self._call("StopPodSandbox", field_of(1, pod.id))

    def run(self, script: str) -> str:
        """Start a container outside of Kubernetes; return its id."""
        identity = os.urandom(32).hex()
        options = ("--detach", "--snapshotter", "native")
        self.ctr("-n", "default", "run", *options, IMAGE, identity, "sh", "-c", script)
        return identity

    def remove_all(self) -> None:
        for identity in self.ctr("-n", "k8s.io", "containers", "list", "--quiet").split():
            with contextlib.suppress(grpc.RpcError):  # a container of a pod
                self._call("RemovePodSandbox", field_of(1, identity))
        for identity in self.ctr("-n", "default", "tasks", "list", "--quiet").split():
            self.ctr("-n", "default", "tasks", "delete", "--force", identity)

    def _call(self, method: str, request: bytes) -> str:
        """Return the first field of the response, a text."""
        call = self.channel.unary_unary(f"/runtime.v1.RuntimeService/{method}", _same, _same)
        response: bytes = call(request, timeout=60)
        return response[2:].decode() if response else ""


def _labels(name: str, uid: str) -> Iterator[bytes]:
    labels = {
        "io.kubernetes.pod.uid": uid,
        "io.kubernetes.pod.namespace": "ml",
        "io.kubernetes.container.name": name,
    }
    yield from (field_of(1, key) + field_of(2, value) for key, value in labels.items())


def _same(message: bytes) -> bytes:
    return message


@contextlib.contextmanager
def containerd_service() -> Iterator[Containerd]:
    """Start containerd. Skip the test where it may not start."""
    if os.getuid() != 0:
        pytest.skip("needs root")
    binary = require("containerd", _PACKAGES)
    with tempfile.TemporaryDirectory(prefix="containerd-") as name:
        folder = Path(name)
        (folder / "cni").mkdir()
        (folder / "config.toml").write_text(_CONF.format(folder=folder, image=IMAGE))
        with (folder / "log").open("wb") as log:
            service = subprocess.Popen(
                [binary, "--config", str(folder / "config.toml")], stdout=log, stderr=log
            )
            channel = grpc.insecure_channel(f"unix:{folder}/containerd.sock")
            runtime = Containerd(folder, channel)
            try:
                _await(service, runtime)
                image = str(_image(folder))
                for space in _NAMESPACES:
                    runtime.ctr("-n", space, "images", "import", "--snapshotter", "native", image)
                yield runtime
            finally:
                if service.poll() is None:
                    with contextlib.suppress(AssertionError):
                        runtime.remove_all()
                channel.close()
                service.terminate()
                service.wait(_READY_S)


def _image(folder: Path) -> Path:
    """Return an archive as of `docker save`."""
    root_files(folder)
    pause = folder / "root/pause"
    pause.write_text(_PAUSE)
    pause.chmod(0o755)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.add(folder / "root", ".")
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    settings = {"Env": ["PATH=/bin"], "Entrypoint": ["/pause"]}
    config = {"architecture": "amd64", "os": "linux", "config": settings}
    config |= {"rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    path = folder / "image.tar"
    with tarfile.open(path, "w") as archive:
        for name, content in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def _await(service: subprocess.Popen[bytes], runtime: Containerd) -> None:
    give_up_s = time.monotonic() + _READY_S
    while True:
        with contextlib.suppress(AssertionError):
            runtime.ctr("version")
            return
        if service.poll() is not None or time.monotonic() > give_up_s:
            pytest.skip(
                f"containerd does not start here: {(runtime.folder / 'log').read_text()[-500:]}"
            )
        time.sleep(0.1)
