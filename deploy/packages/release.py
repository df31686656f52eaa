"""Release artifacts in dist/: sdist, wheel, zipapp, Debian package, SBOM and checksums, equal in each build."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
_HERE = Path(__file__).parent
_SCRIPTS = Path(sysconfig.get_path("scripts"))
_PROGRAMS = {"exporter": "exporter.__main__", "workloads": "workloads.__main__", "wattline": "wattline.cli.main"}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_SCRIPT = """#!/opt/wattline/bin/python3
import sys
from {module} import main
sys.exit(main())
"""
_POSTINST = """#!/bin/sh
set -e
systemd-sysusers wattline.conf
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart wattline-exporter.service
fi
"""
_PRERM = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now wattline-exporter.service
fi
find /opt/wattline -name __pycache__ -prune -exec rm -rf {} +
"""


def project_version(root: Path) -> str:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def check_release(version: str, changelog: str, tags: list[str]) -> None:
    """Raise SystemExit unless the newest release of the changelog and the tags of the commit have this version."""
    found = re.search(r"^## \[(\d[^]]*)\]", changelog, re.MULTILINE)
    newest = found[1] if found else "no release"
    if newest != version:
        sys.exit(
            f"cannot release {version}: the newest release in CHANGELOG.md is {newest}; rename [Unreleased] to "
            f"[{version}] - DATE, or build with SNAPSHOT=1"
        )
    other = [tag for tag in tags if tag.startswith("v") and tag != f"v{version}"]
    if other:
        sys.exit(f"cannot release {version}: the commit has the tag {other[0]}; set version in pyproject.toml")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"cannot build: {' '.join(map(str, command[:4]))} failed: {(done.stderr or done.stdout)[-2_000:]}")


def install_packages(site: Path, wheel: Path) -> None:
    """Install the locked packages and the wheel into the folder `site`, without traces of this machine."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(site)]
    _run(*pip, "--only-binary", ":all:", "--require-hashes", "-r", _HERE / "runtime.txt")
    _run(*pip, "--no-deps", wheel)
    shutil.rmtree(site / "bin")
    for name in ("RECORD", "direct_url.json", "REQUESTED"):
        for path in site.glob(f"*.dist-info/{name}"):
            path.unlink()


def write_bom(site: Path, path: Path, version: str, epoch: int) -> None:
    """Write the packages of the zipapp as CycloneDX JSON."""
    syft = [_SCRIPTS / "syft", "scan", f"dir:{site}", "--source-name=wattline", f"--source-version={version}"]
    _run(*syft, f"--output=cyclonedx-json={path}")
    bom = json.loads(path.read_text())
    del bom["serialNumber"]
    bom["metadata"]["timestamp"] = datetime.fromtimestamp(epoch, UTC).isoformat()
    path.write_text(json.dumps(bom, indent=1, sort_keys=True) + "\n")


def write_deb(site: Path, out: Path, build: Path, version: str, epoch: int) -> None:
    """Write a package with a virtual environment in /opt/wattline and the unit, for this Python and architecture."""
    tree, python = build / "deb", f"python3.{sys.version_info.minor}"
    home, control = tree / "opt/wattline", tree / "DEBIAN"
    shutil.copytree(site, home / f"lib/{python}/site-packages")
    (home / "bin").mkdir()
    (home / "bin/python3").symlink_to(f"/usr/bin/{python}")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    for name, module in _PROGRAMS.items():
        (home / "bin" / name).write_text(_SCRIPT.format(module=module))
        (home / "bin" / name).chmod(0o755)
    files = ROOT / "deploy/systemd"
    for source, target in {
        "wattline-exporter.service": "usr/lib/systemd/system/wattline-exporter.service",
        "wattline.slice": "usr/lib/systemd/system/wattline.slice",
        "wattline-sysusers.conf": "usr/lib/sysusers.d/wattline.conf",
        "wattline-rapl.conf": "usr/lib/tmpfiles.d/wattline-rapl.conf",
        "wattline-exporter.default": "etc/default/wattline-exporter",
    }.items():
        (tree / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(files / source, tree / target)
    architecture = _ARCHITECTURES[os.uname().machine]
    control.mkdir()
    (control / "control").write_text(
        f"Package: wattline\nVersion: {version}\nArchitecture: {architecture}\nSection: admin\nPriority: optional\n"
        "Maintainer: The Wattline authors <root@localhost>\n"
        f"Depends: {python}, systemd\n"
        "Description: Energy, power and runs of GPUs and CPUs\n A systemd service for Prometheus, and the commands.\n"
    )
    (control / "conffiles").write_text("/etc/default/wattline-exporter\n")
    for name, text in {"postinst": _POSTINST, "prerm": _PRERM}.items():
        (control / name).write_text(text)
        (control / name).chmod(0o755)
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)
    _run("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", tree, out / f"wattline_{version}_{architecture}.deb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--snapshot", action="store_true", help="Build a version that is not in CHANGELOG.md yet.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="Folder of the artifacts; it is emptied.")
    options = parser.parse_args()
    out, version = options.out.absolute(), project_version(ROOT)
    if not options.snapshot:
        check_release(version, (ROOT / "CHANGELOG.md").read_text(), _git("tag", "--points-at", "HEAD").split())
    epoch = int(os.environ.setdefault("SOURCE_DATE_EPOCH", _git("log", "-1", "--format=%ct").strip()))
    os.umask(0o022)
    build = ROOT / "build/release"
    for folder in (out, build):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    _run(sys.executable, "-m", "hatchling", "build", "-d", out)
    site = build / "site"
    install_packages(site, next(out.glob("*.whl")))
    _run(
        *(_SCRIPTS / "shiv", "--site-packages", site, "--reproducible", "--entry-point", "wattline.cli.main:main"),
        *("--python", "/usr/bin/env python3", "--output-file", out / "wattline.pyz"),
    )
    write_bom(site, out / "wattline.cdx.json", version, epoch)
    if shutil.which("dpkg-deb"):
        write_deb(site, out, build, version, epoch)
    else:
        print("no Debian package: dpkg-deb is not installed", file=sys.stderr)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(sums))
    print("".join(sums), end="")


if __name__ == "__main__":
    main()
