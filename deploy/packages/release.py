"""Release artifacts in dist/, equal in each build: packages, SBOM and checksums."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import sys
import sysconfig
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from deploy.packages.commands import ROOT, run
from deploy.packages.image import write_image
from deploy.packages.system_packages import install_tree, write_deb, write_rpm
from deploy.packages.tar_files import TarFiles

_HERE = Path(__file__).parent
_SCRIPTS = Path(sysconfig.get_path("scripts"))


def project_version(root: Path) -> str:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def check_release(version: str, changelog: str, tags: list[str]) -> None:
    """Raise SystemExit unless the newest release of the changelog and the tags of the commit have
    this version.
    """
    found = re.search(r"^## \[(\d[^]]*)\]", changelog, re.MULTILINE)
    newest = found[1] if found else "no release"
    if newest != version:
        sys.exit(
            f"cannot release {version}: the newest release in CHANGELOG.md is {newest}; rename "
            "[Unreleased] to "
            f"[{version}] - DATE, or build with SNAPSHOT=1"
        )
    other = [tag for tag in tags if tag.startswith("v") and tag != f"v{version}"]
    if other:
        sys.exit(
            f"cannot release {version}: the commit has the tag {other[0]}; set version in "
            "pyproject.toml"
        )


def install_packages(site: Path, wheel: Path) -> None:
    """Install the locked packages and the wheel into the folder `site`, without traces of this
    machine.
    """
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(site)]
    run(*pip, "--only-binary", ":all:", "--require-hashes", "-r", _HERE / "runtime.txt")
    run(*pip, "--no-deps", wheel)
    shutil.rmtree(site / "bin")
    for name in ("RECORD", "direct_url.json", "REQUESTED"):
        for path in site.glob(f"*.dist-info/{name}"):
            path.unlink()


def write_bom(site: Path, path: Path, version: str, epoch: int) -> None:
    """Write the packages of the zipapp as CycloneDX JSON."""
    syft: list[str | Path] = [
        _SCRIPTS / "syft",
        "scan",
        f"dir:{site}",
        "--source-name=wattline",
        f"--source-version={version}",
    ]
    run(*syft, f"--output=cyclonedx-json={path}")
    bom = json.loads(path.read_text())
    del bom["serialNumber"]
    bom["metadata"]["component"]["bom-ref"] = (
        "wattline"  # syft takes it from the path of the folder
    )
    bom["metadata"]["timestamp"] = datetime.fromtimestamp(epoch, UTC).isoformat()
    path.write_text(json.dumps(bom, indent=1, sort_keys=True) + "\n")


def write_chart(path: Path, epoch: int) -> None:
    """Write the Helm chart with the files themselves in place of its links."""
    chart = ROOT / "deploy/helm/wattline-exporter"
    tar = TarFiles(epoch)
    for folder, _, names in os.walk(chart, followlinks=True):
        for name in names:
            file = Path(folder) / name
            tar.file(str(file.relative_to(chart.parent)), file.read_bytes())
    path.write_bytes(gzip.compress(tar.archive(), mtime=0))


def _installed(program: str, artifact: str) -> bool:
    if shutil.which(program):
        return True
    print(f"no {artifact}: {program} is not installed", file=sys.stderr)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--snapshot", action="store_true", help="Build a version that is not in CHANGELOG.md yet."
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="Folder of the artifacts; it is emptied."
    )
    options = parser.parse_args()
    out = options.out.absolute()
    version = project_version(ROOT)
    if not options.snapshot:
        check_release(
            version,
            (ROOT / "CHANGELOG.md").read_text(),
            run("git", "tag", "--points-at", "HEAD").split(),
        )
    epoch = int(
        os.environ.setdefault("SOURCE_DATE_EPOCH", run("git", "log", "-1", "--format=%ct").strip())
    )
    os.umask(0o022)
    build = ROOT / "build/release"
    for folder in (out, build):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    run(sys.executable, "-m", "hatchling", "build", "-d", out)
    site = build / "site"
    install_packages(site, next(out.glob("*.whl")))
    run(
        *(
            _SCRIPTS / "shiv",
            "--site-packages",
            site,
            "--reproducible",
            "--entry-point",
            "wattline.cli.main:main",
        ),
        *("--python", "/usr/bin/env python3", "--output-file", out / "wattline.pyz"),
    )
    write_bom(site, out / "wattline.cdx.json", version, epoch)
    write_chart(out / f"wattline-exporter-{version}.tgz", epoch)
    tree = build / "tree"
    install_tree(site, tree, epoch)
    if _installed("dpkg-deb", "Debian package"):
        write_deb(tree, out, build, version, epoch)
    if _installed("rpmbuild", "RPM"):
        write_rpm(tree, out, build, version)
    if _installed("apt-get", "container image"):
        write_image(next(out.glob("*.whl")), out, build, version, epoch)
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(out.iterdir())
    ]
    (out / "SHA256SUMS").write_text("".join(sums))
    print("".join(sums), end="")


if __name__ == "__main__":
    main()
