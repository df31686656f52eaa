"""Debian package and RPM: a virtual environment in /opt/wattline, the unit and its files."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from deploy.packages.commands import ROOT, run

_PROGRAMS = {
    "exporter": "wattline_exporter.__main__",
    "workloads": "wattline_workloads.__main__",
    "wattline": "wattline.cli.main",
}
_FILES = {
    "wattline-exporter.service": "usr/lib/systemd/system/wattline-exporter.service",
    "wattline.slice": "usr/lib/systemd/system/wattline.slice",
    "wattline-sysusers.conf": "usr/lib/sysusers.d/wattline.conf",
    "wattline-rapl.conf": "usr/lib/tmpfiles.d/wattline-rapl.conf",
    "wattline-exporter.default": "etc/default/wattline-exporter",
}
_CONFIGURATION = "/etc/default/wattline-exporter"
_DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
_SCRIPT = """#!/opt/wattline/bin/python3
import sys
from {module} import main
sys.exit(main())
"""
_INSTALLED = """systemd-sysusers wattline.conf
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart wattline-exporter.service
fi
"""
_BEFORE_REMOVAL = """if [ -d /run/systemd/system ]; then
    systemctl stop wattline-exporter.service
fi
systemctl --no-reload --quiet disable wattline-exporter.service
"""
_CACHES = "find /opt/wattline -name __pycache__ -prune -exec rm -rf {} +\n"
_REMOVED = """if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
"""
_DEBIAN_SCRIPTS = {
    "postinst": _INSTALLED,
    "prerm": f'if [ "$1" = remove ]; then\n{_BEFORE_REMOVAL}fi\n{_CACHES}',
    "postrm": f'if [ "$1" = purge ]; then\n    rm -rf /var/lib/wattline\nfi\n{_REMOVED}',
}
_SUMMARY = "Energy, power and runs of GPUs and CPUs"
_DESCRIPTION = "A systemd service for Prometheus, and the commands."
_SPEC = """%global __os_install_post %{{nil}}
%global debug_package %{{nil}}
%global _build_id_links none
%global _buildhost reproducible
%global _binary_payload w6.gzdio
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
Name: wattline
Version: {version}
Release: 1
Summary: {summary}
License: MIT
Group: System Environment/Daemons
AutoReqProv: no
Requires: /usr/bin/{python}
Requires: systemd
%description
{description}
%install
cp -a {tree}/. %{{buildroot}}
%post
{installed}%preun
if [ "$1" = 0 ]; then
{before_removal}fi
{caches}%postun
{removed}%files
%defattr(-,root,root,-)
/opt/wattline
%config(noreplace) {configuration}
{files}
"""


def install_tree(site: Path, tree: Path, epoch: int) -> None:
    """Lay out the files of both packages below the folder `tree`, all with the time `epoch`."""
    python = f"python3.{sys.version_info.minor}"
    home = tree / "opt/wattline"
    shutil.copytree(site, home / f"lib/{python}/site-packages")
    (home / "bin").mkdir()
    (home / "bin/python3").symlink_to(f"/usr/bin/{python}")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    for name, module in _PROGRAMS.items():
        (home / "bin" / name).write_text(_SCRIPT.format(module=module))
        (home / "bin" / name).chmod(0o755)
    for source, target in _FILES.items():
        (tree / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "deploy/systemd" / source, tree / target)
    _normalize(tree, epoch)


def _normalize(tree: Path, epoch: int) -> None:
    """Give all files modes and times that do not depend on this machine."""
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def write_deb(tree: Path, out: Path, build: Path, version: str, epoch: int) -> None:
    """Write the Debian package for this Python and architecture."""
    folder = build / "deb"
    architecture = _DEBIAN[os.uname().machine]
    shutil.copytree(tree, folder, symlinks=True)
    control = folder / "DEBIAN"
    control.mkdir()
    (control / "control").write_text(
        f"Package: wattline\nVersion: {version}\nArchitecture: {architecture}\nSection: "
        "admin\nPriority: optional\n"
        "Maintainer: The Wattline authors <root@localhost>\n"
        f"Depends: python3.{sys.version_info.minor}, systemd\n"
        f"Description: {_SUMMARY}\n {_DESCRIPTION}\n"
    )
    (control / "conffiles").write_text(f"{_CONFIGURATION}\n")
    for name, text in _DEBIAN_SCRIPTS.items():
        (control / name).write_text(f"#!/bin/sh\nset -e\n{text}")
        (control / name).chmod(0o755)
    _normalize(folder, epoch)
    run(
        "dpkg-deb",
        "--root-owner-group",
        "-Zgzip",
        "--build",
        folder,
        out / f"wattline_{version}_{architecture}.deb",
    )


def write_rpm(tree: Path, out: Path, build: Path, version: str) -> None:
    """Write the RPM for this Python and architecture; SOURCE_DATE_EPOCH is its time."""
    folder = build / "rpm"
    machine = os.uname().machine
    folder.mkdir()
    others = [f"/{target}" for target in _FILES.values() if f"/{target}" != _CONFIGURATION]
    spec = _SPEC.format(
        version=version,
        summary=_SUMMARY,
        description=_DESCRIPTION,
        python=f"python3.{sys.version_info.minor}",
        tree=tree,
        installed=_INSTALLED,
        before_removal=_BEFORE_REMOVAL,
        caches=_CACHES,
        removed=_REMOVED,
        configuration=_CONFIGURATION,
        files="\n".join(others),
    )
    (folder / "wattline.spec").write_text(spec)
    define = (
        "--define",
        f"_topdir {folder}",
        "--define",
        f"_rpmdir {folder}",
        "--define",
        "_build_name_fmt %{NAME}.rpm",
    )
    run(
        "rpmbuild",
        "-bb",
        "--quiet",
        "--target",
        f"{machine}-linux",
        *define,
        folder / "wattline.spec",
    )
    shutil.copy(folder / "wattline.rpm", out / f"wattline-{version}-1.{machine}.rpm")
