"""Podman service on a Unix socket with one small image and temporary storage."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers import require

IMAGE = "localhost/tiny:1"
"""Image with BusyBox and an older score in /old/metrics.yml."""
_PACKAGES = "podman runc busybox-static"
_READY_S = 60.0
_OLD_S = 1_600_000_000
# No features that need privileges: no bridge, no systemd, no limits above those of the machine.
_CONF = """\
[containers]
netns = "host"
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[engine.runtimes]
runc = ["{runc}"]
"""
# Registries of this machine need no TLS; names without a registry are not searched elsewhere.
_REGISTRIES = """\
[[registry]]
location = "127.0.0.1"
insecure = true
"""


@dataclass(frozen=True)
class Podman:
    folder: Path
    environment: dict[str, str]
    gpu: str
    """UUID of an assignable GPU, set as SEEN_GPU in a container. Requires root."""
    storage: str = "vfs"

    @property
    def host(self) -> str:
        return f"unix://{self.folder / 'api.sock'}"

    def command(self, *arguments: str) -> list[str]:
        own = ["--root", str(self.folder / "store"), "--runroot", str(self.folder / "run")]
        return ["podman", *own, f"--storage-driver={self.storage}", *arguments]

    def __call__(self, *arguments: str, within_s: float = 60.0) -> str:
        command = self.command(*arguments)
        completed = subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )
        assert completed.returncode == 0, f"{completed.stderr}{completed.stdout}"
        return completed.stdout

    def containers(self) -> list[str]:
        """Return the ids of all containers, running or not."""
        return self("ps", "--all", "--quiet", "--no-trunc").split()

    def pids(self) -> list[int]:
        """Return the PID of the first process of each running container."""
        result = [self.state(container)["Pid"] for container in self.containers()]
        return [pid for pid in result if pid]

    def state(self, container: str) -> dict[str, Any]:
        (result,) = json.loads(self("container", "inspect", container))
        state: dict[str, Any] = result["State"]
        return state


def configured_podman(folder: Path, storage: str = "vfs") -> Podman:
    """Return a Podman with settings and storage in the folder, before its service starts."""
    require("podman", _PACKAGES)
    files = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_REGISTRIES_CONF": "registries.conf"}
    environment = {**os.environ, **{name: str(folder / file) for name, file in files.items()}}
    (folder / "containers.conf").write_text(_CONF.format(runc=_runc()))
    (folder / "registries.conf").write_text(_REGISTRIES)
    return Podman(folder, environment, f"GPU-{secrets.token_hex(8)}", storage)


@contextlib.contextmanager
def podman_service() -> Iterator[Podman]:
    with tempfile.TemporaryDirectory(prefix="podman-") as name:
        folder = Path(name)
        podman = configured_podman(folder)
        podman("import", str(root_files(folder)), IMAGE)
        with (folder / "service.log").open("wb") as log, _described(podman.gpu):
            service = subprocess.Popen(
                podman.command("system", "service", "--time=0", podman.host),
                env=podman.environment,
                stdout=log,
                stderr=log,
            )
            try:
                _await(service, folder)
                yield podman
            finally:
                podman("rm", "--all", "--force", "--time=0")
                service.terminate()
                service.wait(30)


@contextlib.contextmanager
def _described(gpu: str) -> Iterator[None]:
    """Describe the GPU in a file of the Container Device Interface, for which Podman reads only a
    system folder.
    """
    if os.getuid() != 0:
        yield
        return
    device = {"name": gpu, "containerEdits": {"env": [f"SEEN_GPU={gpu}"]}}
    path = Path("/var/run/cdi") / f"wattline-test-{gpu}.json"
    path.parent.mkdir(exist_ok=True)
    path.with_suffix(".new").write_text(
        json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [device]})
    )
    path.with_suffix(".new").rename(path)
    try:
        yield
    finally:
        path.unlink()


def _runc() -> str:
    return shutil.which("runc") or require("/usr/sbin/runc", _PACKAGES)


def root_files(folder: Path) -> Path:
    """Return a tar of the image."""
    busybox = require("busybox", _PACKAGES)
    root = folder / "root"
    for name in ("bin", "dev", "etc", "old", "proc", "root", "sys", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    for name in subprocess.run(
        [busybox, "--list"], capture_output=True, text=True, check=True
    ).stdout.split():
        if not (root / "bin" / name).exists():
            (root / "bin" / name).symlink_to("busybox")
    score = root / "old/metrics.yml"
    score.write_text("time: 99\n")
    os.utime(score, (_OLD_S, _OLD_S))
    return Path(shutil.make_archive(str(folder / "root-files"), "tar", root))


def _await(service: subprocess.Popen[bytes], folder: Path) -> None:
    give_up_s = time.monotonic() + _READY_S
    while not (folder / "api.sock").exists():
        if service.poll() is not None or time.monotonic() > give_up_s:
            pytest.fail(f"podman's service did not start:\n{(folder / 'service.log').read_text()}")
        time.sleep(0.05)
