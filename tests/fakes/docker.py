"""Docker daemon for one test, where this user may start one; its containers need --network host."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.podman import root_files

IMAGE = "tiny:1"
_READY_S = 60.0


@dataclass(frozen=True)
class Docker:
    folder: Path

    @property
    def host(self) -> str:
        return f"unix://{self.folder / 'docker.sock'}"

    def __call__(self, *arguments: str) -> str:
        completed = subprocess.run(
            ["docker", "--host", self.host, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    def containers(self) -> list[str]:
        return self("ps", "--all", "--quiet", "--no-trunc").split()


@contextlib.contextmanager
def docker_service() -> Iterator[Docker]:
    if os.getuid() != 0 or not shutil.which("dockerd") or not shutil.which("docker"):
        pytest.skip(
            "cannot start a separate Docker: not root, or no dockerd (apt-get install docker.io)"
        )
    with tempfile.TemporaryDirectory(prefix="docker-") as name:
        docker = Docker(Path(name))
        options = [f"--{option}={name}/{option}" for option in ("data-root", "exec-root")]
        plain = ["--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs"]
        command = ["dockerd", *options, *plain, "--host", docker.host, "--pidfile", f"{name}/pid"]
        path = f"{_nvidias_hook(docker.folder)}:{os.environ['PATH']}"
        with (docker.folder / "dockerd.log").open("wb") as log:
            daemon = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "PATH": path}
            )
            try:
                _await(daemon, docker)
                docker("import", str(root_files(docker.folder)), IMAGE)
                yield docker
            finally:
                daemon.terminate()
                daemon.wait(_READY_S)
                subprocess.run(
                    ["umount", f"{name}/exec-root/netns/default"], capture_output=True, check=False
                )


def _nvidias_hook(folder: Path) -> Path:
    """With it Docker takes requests for GPUs: it names them in the container's
    NVIDIA_VISIBLE_DEVICES for the hook, which would mount the devices, and here does nothing.
    """
    hook = folder / "bin/nvidia-container-runtime-hook"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    return hook.parent


def _await(daemon: subprocess.Popen[bytes], docker: Docker) -> None:
    give_up_s = time.monotonic() + _READY_S
    while True:
        with contextlib.suppress(AssertionError):
            docker("version")
            return
        if daemon.poll() is not None or time.monotonic() > give_up_s:
            pytest.skip(
                f"dockerd does not start here: {(docker.folder / 'dockerd.log').read_text()[-500:]}"
            )
        time.sleep(0.2)
