"""Packages of Debian for the image: locked versions, downloaded by apt for any architecture.

`python -m deploy.packages.debian` writes the lock file `image.lock` from the names in `image.in`.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.packages.commands import ROOT, run

SUITE = "trixie"
ARCHITECTURES = ("amd64", "arm64")
_HERE = Path(__file__).parent
_LOCK = _HERE / "image.lock"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@dataclass(frozen=True)
class Package:
    architecture: str
    name: str
    version: str
    sha256: str

    def line(self) -> str:
        return f"{self.architecture} {self.name}={self.version} sha256:{self.sha256}\n"


class _Apt:
    """Apt with its own lists for one architecture; it has the transport settings of this
    machine.
    """

    def __init__(self, folder: Path, architecture: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sources.list").write_text("".join(_sources()))
        own = {
            "Dir::State": folder / "state",
            "Dir::State::status": "/dev/null",
            "Dir::Cache": folder / "cache",
            "Dir::Etc::SourceList": folder / "sources.list",
            "Dir::Etc::SourceParts": "-",
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Sandbox::User": "root",
        }
        for name in ("state/lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._options = [part for name, value in own.items() for part in ("-o", f"{name}={value}")]
        run("apt-get", *self._options, "--quiet", "update")

    def show(self, *names: str) -> str:
        return run("apt-cache", *self._options, "--no-all-versions", "show", *names)

    def download(self, folder: Path, packages: list[Package]) -> None:
        names = [f"{package.name}={package.version}" for package in packages]
        run(
            "sh",
            "-c",
            'cd "$1"; shift; exec apt-get "$@"',
            "sh",
            folder,
            *self._options,
            "download",
            *names,
        )


def _sources() -> Iterator[str]:
    """Yield the lines of sources.list: the mirrors of this machine, or DEBIAN_MIRROR alone."""
    own = os.environ.get("DEBIAN_MIRROR")
    known = run("apt-get", "indextargets", "--format", "$(REPO_URI)") if own is None else own
    for uri in sorted({line.rstrip("/") for line in known.splitlines()}):
        if uri.endswith("/debian-security"):
            yield f"deb [signed-by={_KEYRING}] {uri} {SUITE}-security main\n"
        elif own is not None or uri.endswith("/debian"):
            yield f"deb [signed-by={_KEYRING}] {uri} {SUITE} main\n"


def locked(architecture: str) -> list[Package]:
    """Return the locked packages of an architecture."""
    pattern = re.compile(r"(\S+) (\S+?)=(\S+) sha256:([0-9a-f]{64})")
    found = [re.fullmatch(pattern, line) for line in _LOCK.read_text().splitlines()]
    return [
        package
        for match in found
        if match and (package := Package(*match.groups())).architecture == architecture
    ]


def download(architecture: str) -> list[Path]:
    """Return the archives of the locked packages, downloaded once. Raise SystemExit for another
    content.
    """
    folder = ROOT / "build" / "debian" / architecture
    archives = folder / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    packages = locked(architecture)
    if missing := [package for package in packages if _archive(archives, package) is None]:
        _Apt(folder, architecture).download(archives, missing)
    result = [_archive(archives, package) for package in packages]
    for package, path in zip(packages, result, strict=True):
        if path is None:
            sys.exit(
                f"cannot build image: {package.name} {package.version} has another content than in "
                f"{_LOCK.name}"
            )
    return [path for path in result if path is not None]


def _archive(folder: Path, package: Package) -> Path | None:
    for path in folder.glob(f"{package.name}_*.deb"):
        if hashlib.sha256(path.read_bytes()).hexdigest() == package.sha256:
            return path
    return None


def main() -> None:
    names = (_HERE / "image.in").read_text().split()
    lines = []
    for architecture in ARCHITECTURES:
        shown = _Apt(ROOT / "build" / "debian" / architecture, architecture).show(*names)
        for record in shown.strip().split("\n\n"):
            fields = dict(
                line.split(": ", 1) for line in record.splitlines() if re.match(r"[A-Z]\S*: ", line)
            )
            lines.append(
                Package(architecture, fields["Package"], fields["Version"], fields["SHA256"]).line()
            )
    _LOCK.write_text("".join(sorted(lines)))


if __name__ == "__main__":
    main()
