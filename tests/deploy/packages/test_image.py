"""Container image of a release: equal digests, a measurement on amd64, and a start of arm64."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.packages import debian
from tests.deploy.packages.conftest import needs_build
from tests.fakes.podman import Podman, configured_podman
from tests.servers import require

_CHECK = ("check", "--simulate", "2xH200", "--idle-seconds", "1", "--state.path", "/tmp/state")
_MODULES = (
    "aiohttp, bcrypt, grpc, msgspec, numpy, psutil, pydantic_core, pynvml, sqlite3, ssl, yaml"
)
_ELF = r"\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00"
_ELF_MASK = r"\xff" * 7 + r"\x00" + r"\xff" * 8 + r"\xfe\xff\xff\xff"
_EMULATED = """
set -eu
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf "%s" "$3" > /proc/sys/fs/binfmt_misc/register
mount --rbind /proc "$2/proc"
mount --rbind /dev "$2/dev"
root=$2
shift 3
chroot=$(command -v chroot)
PATH=/opt/wattline/bin:/usr/bin exec "$chroot" "$root" "$@"
"""


def test_image_lock_has_the_same_packages_for_each_architecture() -> None:
    names = [
        {package.name for package in debian.locked(architecture)}
        for architecture in debian.ARCHITECTURES
    ]
    assert (
        names[0]
        == names[1]
        == set((Path(debian.__file__).with_name("image.in")).read_text().split())
    )


@pytest.fixture(scope="module")
def archive(built: list[Path]) -> Path:
    (path,) = built[0].glob("*.oci.tar")
    return path


def blob(archive: Path, digest: str) -> bytes:
    algorithm, value = digest.split(":")
    with tarfile.open(archive) as tar:
        file = tar.extractfile(f"blobs/{algorithm}/{value}")
        assert file is not None
        return file.read()


def manifests(archive: Path) -> dict[str, dict]:
    """Return the manifest of each architecture."""
    with tarfile.open(archive) as tar:
        (index,) = json.load(tar.extractfile("index.json"))["manifests"]
    entries = json.loads(blob(archive, index["digest"]))["manifests"]
    return {
        entry["platform"]["architecture"]: json.loads(blob(archive, entry["digest"]))
        for entry in entries
    }


def unpack(archive: Path, architecture: str, folder: Path) -> None:
    for layer in manifests(archive)[architecture]["layers"]:
        with tarfile.open(fileobj=io.BytesIO(blob(archive, layer["digest"]))) as tar:
            tar.extractall(folder, filter="fully_trusted")


@needs_build
def test_recorded_digests_are_those_of_the_archive_and_equal_in_two_builds(
    built: list[Path], archive: Path
) -> None:
    recorded = dict(
        reversed(line.split()) for line in (built[0] / "image-digests.txt").read_text().splitlines()
    )
    assert (built[1] / "image-digests.txt").read_text() == (
        built[0] / "image-digests.txt"
    ).read_text()
    (name, *_) = recorded
    index = json.loads(blob(archive, recorded[name]))
    assert {f"linux/{m['platform']['architecture']}": m["digest"] for m in index["manifests"]} == {
        "linux/amd64": recorded["linux/amd64"],
        "linux/arm64": recorded["linux/arm64"],
    }
    for digest in recorded.values():
        assert hashlib.sha256(blob(archive, digest)).hexdigest() == digest.partition(":")[2]


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    if os.geteuid() != 0:
        pytest.skip("a container with its own network needs root")
    with tempfile.TemporaryDirectory(prefix="image-", dir="/var/tmp") as name:
        engine = configured_podman(Path(name), storage="overlay")
        yield engine
        engine("rm", "--all", "--force", "--time=0")
        engine("rmi", "--all", "--force")


@needs_build
def test_amd64_image_measures_without_root_and_has_no_shell(archive: Path, podman: Podman) -> None:
    podman("load", "--quiet", "--input", str(archive), within_s=180)
    image = podman("images", "--quiet").split()[0]
    closed = (
        "--rm",
        "--read-only",
        "--tmpfs=/tmp",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--network=none",
    )
    checked = podman("run", *closed, image, *_CHECK, within_s=120)
    assert "idle    GPU 0 draws" in checked, checked
    (inspected,) = json.loads(podman("image", "inspect", image))
    assert inspected["Config"]["User"] == "65532:65532"
    assert inspected["Architecture"] == "amd64"
    python = ("run", *closed, "--entrypoint", "/opt/wattline/bin/python3", image, "-c")
    podman(*python, f"import {_MODULES}", within_s=120)
    certificates = "import ssl; print(len(ssl.create_default_context().get_ca_certs()))"
    assert int(podman(*python, certificates, within_s=120)) > 100
    with pytest.raises(AssertionError, match="sh"):
        podman("run", *closed, "--entrypoint", "/bin/sh", image, "-c", "true")


@needs_build
def test_arm64_image_starts_under_emulation(archive: Path, tmp_path: Path) -> None:
    """Register QEMU in the binfmt_misc of a separate user namespace (Linux 6.7 and later).

    It is too slow to measure: the processes that read GPUs exceed their time limits.
    """
    qemu = require("qemu-aarch64-static", "qemu-user-static")
    if os.geteuid() != 0:
        pytest.skip("files of several owners need root")
    root = tmp_path / "root"
    root.mkdir()
    unpack(archive, "arm64", root)
    registered = f":aarch64:M::{_ELF}:{_ELF_MASK}:{qemu}:F"
    modules = f"import platform, {_MODULES}; print(platform.machine())"
    for command, output in (
        (["exporter", "--version"], "exporter 0.1.0"),
        (["python3", "-c", modules], "aarch64"),
    ):
        spaces = [
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
        ]
        script = ["sh", "-c", _EMULATED, "sh", qemu, str(root), registered, *command]
        done = subprocess.run(
            [*spaces, *script], capture_output=True, text=True, timeout=1_500, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == output
