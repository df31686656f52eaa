"""Container image for amd64 and arm64 as an OCI archive, made of files alone, without a container
engine.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.packages import debian
from deploy.packages.commands import run
from deploy.packages.tar_files import TarFiles

_HERE = Path(__file__).parent
_PYTHON = "3.13"
_GLIBC = 41
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_LOADERS = {"amd64": {"lib64": "usr/lib64"}, "arm64": {}}
_MERGED = {"bin": "usr/bin", "lib": "usr/lib", "sbin": "usr/sbin"}
_USER = 65532
_UNUSED = (
    "./usr/share/man/",
    "./usr/share/locale/",
    "./usr/share/lintian/",
    "./usr/share/bug/",
    "./usr/share/doc/",
)
_ACCOUNTS = {
    "etc/passwd": (
        "root:x:0:0::/root:/usr/sbin/nologin\n"
        "wattline:x:65532:65532::/var/lib/wattline:/usr/sbin/nologin\n"
    ),
    "etc/group": "root:x:0:\nwattline:x:65532:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
_LABELS = {
    "org.opencontainers.image.title": "Wattline exporter",
    "org.opencontainers.image.description": "Energy, power, carbon and runs of GPUs and CPUs for "
    "Prometheus",
    "org.opencontainers.image.licenses": "MIT",
}
_CONFIG = {
    "User": f"{_USER}:{_USER}",
    "ExposedPorts": {"9847/tcp": {}},
    "Env": [
        "PATH=/opt/wattline/bin:/usr/bin",
        "PYTHONDONTWRITEBYTECODE=1",
        "STATE_DIRECTORY=/var/lib/wattline",
        "NVIDIA_VISIBLE_DEVICES=all",
        "NVIDIA_DRIVER_CAPABILITIES=utility",
    ],
    "Entrypoint": ["exporter"],
    "Cmd": ["serve", "--web.listen-address", "0.0.0.0:9847"],
    "WorkingDir": "/",
}
_SCRIPT = (
    "#!/opt/wattline/bin/python3\nimport sys\nfrom wattline_exporter.__main__ import "
    "main\nsys.exit(main())\n"
)
_OCI = "application/vnd.oci.image."


def _debian_files(architecture: str, epoch: int) -> TarFiles:
    """Return the files of the Debian packages; dpkg's records of them are where scanners of small
    images look.
    """
    layer = TarFiles(epoch)
    for path in debian.download(architecture):
        unpacked = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", path], capture_output=True, check=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
            for member in tar:
                if member.name.startswith(_UNUSED) and not member.name.endswith("/copyright"):
                    continue
                content = tar.extractfile(member) if member.isreg() else None
                layer.add(member, content.read() if content else b"")
        control = run("dpkg-deb", "--field", path)
        name = path.name.partition("_")[0]
        layer.file(
            f"var/lib/dpkg/status.d/{name}",
            f"{control.strip()}\nStatus: install ok installed\n\n".encode(),
        )
    for name, target in {**_MERGED, **_LOADERS[architecture]}.items():
        layer.link(name, target)
    layer.folder("tmp", 0o1777)
    for name, text in _ACCOUNTS.items():
        layer.file(name, text.encode())
    layer.file(
        "etc/ssl/certs/ca-certificates.crt",
        layer.read("usr/share/ca-certificates/mozilla/", ".crt"),
    )
    layer.link("usr/lib/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt")
    return layer


class _Compiler:
    """Python of the image, which compiles modules; their code is the same for each architecture."""

    def __init__(self, folder: Path, epoch: int) -> None:
        (architecture,) = [
            name for name, machine in _MACHINES.items() if machine == os.uname().machine
        ]
        self.root = folder
        with tarfile.open(fileobj=io.BytesIO(_debian_files(architecture, epoch).archive())) as tar:
            tar.extractall(folder, filter="tar")
        libraries = folder / f"usr/lib/{_MACHINES[architecture]}-linux-gnu"
        (loader,) = libraries.glob("ld-linux-*.so.*")
        settings = [f"PYTHONHOME={folder}/usr", "PYTHONHASHSEED=0"]
        python = folder / f"usr/bin/python{_PYTHON}"
        self._command: list[str | Path] = [
            "env",
            *settings,
            loader,
            "--library-path",
            libraries,
            python,
            "-S",
            "-B",
            "-m",
            "compileall",
        ]

    def compile(self, folder: Path, prefix: str) -> None:
        """Compile all modules below the folder, which the image has at `/prefix`."""
        options = (
            "-q",
            "-f",
            "--invalidation-mode",
            "unchecked-hash",
            "-s",
            str(folder),
            "-p",
            f"/{prefix}",
        )
        run(*self._command, *options, folder)

    def add_library(self, layer: TarFiles) -> None:
        """Add the compiled standard library."""
        library = f"usr/lib/python{_PYTHON}"
        if not list((self.root / library).glob("__pycache__")):
            self.compile(self.root / library, library)
        for path in sorted((self.root / library).rglob("__pycache__/*.pyc")):
            layer.file(str(path.relative_to(self.root)), path.read_bytes())


def _install(site: Path, wheel: Path, architecture: str) -> None:
    """Install the locked packages for an architecture, without running any of them."""
    platforms = [f"manylinux_2_{minor}_{_MACHINES[architecture]}" for minor in range(_GLIBC, 4, -1)]
    target = [part for name in platforms for part in ("--platform", name)]
    target += [
        "--implementation",
        "cp",
        "--python-version",
        _PYTHON,
        "--abi",
        f"cp{_PYTHON.replace('.', '')}",
    ]
    target += ["--abi", "abi3", "--abi", "none", "--only-binary", ":all:"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(site)]
    run(*pip, *target, "--require-hashes", "--no-deps", "-r", _HERE / "image.txt")
    run(*pip, "--no-deps", wheel)
    shutil.rmtree(site / "bin")
    for name in ("wattline_workloads", "wattline_analyzer"):
        shutil.rmtree(site / name)
    for name in (
        "RECORD",
        "direct_url.json",
        "REQUESTED",
    ):  # a record has hashes of scripts, which name this folder
        for path in site.glob(f"*.dist-info/{name}"):
            path.unlink()
    for path in (site / "numpy").rglob("tests"):
        shutil.rmtree(path)
    for path in [*site.rglob("*.a"), *site.rglob("*.pyi"), *site.rglob("__pycache__")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _wattline_layer(site: Path, packages: str, epoch: int) -> bytes:
    layer = TarFiles(epoch)
    home = "opt/wattline"
    for name in (
        "opt",
        home,
        f"{home}/bin",
        f"{home}/lib",
        f"{home}/lib/python{_PYTHON}",
        packages,
    ):
        layer.folder(name)
    for path in sorted(site.rglob("*")):
        name = f"{packages}/{path.relative_to(site)}"
        if path.is_dir():
            layer.folder(name)
        else:
            layer.file(name, path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644)
    layer.link(f"{home}/bin/python3", f"/usr/bin/python{_PYTHON}")
    layer.file(f"{home}/bin/exporter", _SCRIPT.encode(), 0o755)
    layer.file(f"{home}/pyvenv.cfg", b"home = /usr/bin\ninclude-system-site-packages = false\n")
    for name in ("var", "var/lib"):
        layer.folder(name)
    layer.folder("var/lib/wattline", 0o755, _USER)
    return layer.archive()


@dataclass
class _Archive:
    """Blobs of an OCI layout by digest."""

    blobs: dict[str, bytes] = field(default_factory=dict)

    def blob(self, content: bytes, media_type: str, **more: Any) -> dict[str, Any]:
        """Store a blob and return its descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        self.blobs[digest] = content
        return {
            "mediaType": _OCI + media_type,
            "digest": f"sha256:{digest}",
            "size": len(content),
            **more,
        }

    def document(self, content: dict[str, Any], media_type: str, **more: Any) -> dict[str, Any]:
        return self.blob(
            json.dumps(content, sort_keys=True, separators=(",", ":")).encode(), media_type, **more
        )

    def write(self, path: Path, index: dict[str, Any], epoch: int) -> None:
        layer = TarFiles(epoch)
        layer.file("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        layer.file("index.json", json.dumps(index, sort_keys=True).encode())
        for name in ("blobs", "blobs/sha256"):
            layer.folder(name)
        for digest, content in self.blobs.items():
            layer.file(f"blobs/sha256/{digest}", content)
        path.write_bytes(layer.archive())


def _add_image(
    archive: _Archive, layers: list[bytes], architecture: str, version: str, epoch: int
) -> dict[str, Any]:
    """Add the image of an architecture and return the descriptor of its manifest."""
    created = datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z")
    labels = {**_LABELS, "org.opencontainers.image.version": version}
    texts = ("Python of Debian", "Wattline")
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": created,
        "config": {**_CONFIG, "Labels": labels},
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers],
        },
        "history": [{"created": created, "comment": text} for text in texts],
    }
    packed = [archive.blob(gzip.compress(layer, mtime=0), "layer.v1.tar+gzip") for layer in layers]
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}manifest.v1+json",
        "config": archive.document(config, "config.v1+json"),
        "layers": packed,
    }
    platform = {"architecture": architecture, "os": "linux"}
    return archive.document(manifest, "manifest.v1+json", platform=platform)


def write_image(wheel: Path, out: Path, build: Path, version: str, epoch: int) -> None:
    """Write the archive of both architectures, and a file with the digests by which a registry
    serves them.
    """
    archive = _Archive()
    manifests = []
    compiler = _Compiler(build / "image-python", epoch)
    packages = f"opt/wattline/lib/python{_PYTHON}/site-packages"
    for architecture in debian.ARCHITECTURES:
        site = build / f"image-{architecture}"
        _install(site, wheel, architecture)
        compiler.compile(site, packages)
        base = _debian_files(architecture, epoch)
        compiler.add_library(base)
        layers = [base.archive(), _wattline_layer(site, packages, epoch)]
        manifests.append(_add_image(archive, layers, architecture, version, epoch))
    images = {"schemaVersion": 2, "mediaType": f"{_OCI}index.v1+json", "manifests": manifests}
    tag = {"org.opencontainers.image.ref.name": version}
    index = archive.document(images, "index.v1+json")
    archive.write(
        out / f"wattline-exporter-{version}.oci.tar",
        {"schemaVersion": 2, "manifests": [{**index, "annotations": tag}]},
        epoch,
    )
    lines = [f"{index['digest']}  wattline-exporter:{version}\n"]
    lines += [f"{one['digest']}  linux/{one['platform']['architecture']}\n" for one in manifests]
    (out / "image-digests.txt").write_text("".join(lines))
