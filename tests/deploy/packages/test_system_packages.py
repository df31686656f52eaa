"""Debian package and RPM under a booted systemd, in a root with nothing but Debian's minimum,
systemd and Python.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.packages.commands import ROOT
from tests.deploy.machine import SYSTEMD, Machine
from tests.deploy.packages.conftest import needs_build
from tests.fakes import nvml
from tests.polling import eventually
from tests.servers import require
from wattline_exporter import simulation
from wattline_exporter.simulation import Constant, Simulation

pytestmark = needs_build
UNIT = "wattline-exporter"
POWER_W = 300.0
_CLEAN = ROOT / "build" / "debian-bookworm-systemd"
_PACKAGES = "systemd,systemd-sysv,python3.11,rpm"
_DRIVER, _SIMULATED, _DIST = Path("/opt/driver"), Path("/opt/simulated"), Path("/opt/dist")
_DROP_IN = f"""[Service]
Environment=LD_LIBRARY_PATH={_DRIVER}
Environment={simulation.ENVIRONMENT}={_SIMULATED / simulation.FILE_NAME}
ReadWritePaths={_SIMULATED}
"""
_READ = (
    "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9847/metrics', "
    "timeout=10).read().decode())"
)
LEFT = (
    "/usr/lib/systemd/system /etc/systemd/system /usr/lib/sysusers.d /usr/lib/tmpfiles.d "
    "/opt/wattline"
)


@dataclass(frozen=True)
class Installer:
    """Name of the package and commands of its manager."""

    pattern: str
    install: tuple[str, ...]
    remove: tuple[str, ...]
    purge: tuple[str, ...] = ()


INSTALLERS = {
    "deb": Installer(
        "*.deb",
        ("apt-get", "install", "--yes"),
        ("apt-get", "remove", "--yes"),
        ("apt-get", "purge", "--yes"),
    ),
    # Debian's Python and systemd are not in the database of rpm.
    "rpm": Installer(
        "*.rpm", ("rpm", "--force-debian", "--nodeps", "-i"), ("rpm", "--force-debian", "-e")
    ),
}


@pytest.fixture(scope="module")
def clean_root() -> Path:
    """Return the folder of a minimal Debian, made once."""
    if not _CLEAN.exists():
        mmdebstrap = require("mmdebstrap", "mmdebstrap")
        unfinished = _CLEAN.with_suffix(f".{os.getpid()}")
        made = [
            mmdebstrap,
            "--quiet",
            "--variant=minbase",
            "--dpkgopt=force-unsafe-io",
            f"--include={_PACKAGES}",
        ]
        subprocess.run(
            [*made, "bookworm", str(unfinished)], check=True, capture_output=True, timeout=500
        )
        unfinished.rename(_CLEAN)
    return _CLEAN


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of two simulated GPUs of 300 W for the stand-in of the driver library."""
    folder = tmp_path / "simulated"
    folder.mkdir()
    path = folder / simulation.FILE_NAME
    simulation.create(
        path, simulation.make_gpus(2, simulation.PRODUCTS["H200"]), simulation.clock_s()
    )
    path.chmod(0o666)
    simulated = Simulation.open(path)
    for gpu in range(2):
        simulated.set_load(gpu, Constant(POWER_W))
    yield folder
    simulated.close()


@pytest.fixture
def node(clean_root: Path, driver: Path, built: list[Path], tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0 or not SYSTEMD.exists():
        pytest.skip("to boot a systemd takes root and Debian's package systemd")
    binds = {nvml.library().parent: _DRIVER, driver: _SIMULATED, built[0]: _DIST}
    with Machine(tmp_path / "machine", clean_root, binds) as booted:
        yield booted


def succeed(node: Machine, *command: str) -> str:
    completed = node.run(*command)
    assert completed.returncode == 0, f"{command}: {completed.stderr}{completed.stdout}"
    return completed.stdout


def log(node: Machine) -> str:
    return node.run("journalctl", "-u", UNIT, "--no-pager").stdout


def metric(node: Machine, start: str) -> list[float]:
    page = node.run("/opt/wattline/bin/python3", "-c", _READ).stdout
    return [float(line.split()[-1]) for line in page.splitlines() if line.startswith(start)]


@pytest.mark.parametrize("kind", INSTALLERS)
def test_package_measures_under_systemd_and_leaves_no_unit(
    kind: str, built: list[Path], node: Machine
) -> None:
    installer = INSTALLERS[kind]
    (package,) = built[0].glob(installer.pattern)
    succeed(node, *installer.install, str(_DIST / package.name))
    node.write(f"/etc/systemd/system/{UNIT}.service.d/gpus.conf", _DROP_IN)
    succeed(node, "systemctl", "daemon-reload")
    succeed(node, "systemctl", "enable", "--now", UNIT)
    eventually(
        lambda: metric(node, "wattline_gpu_up{") == [1, 1], "both GPUs are up", lambda: log(node)
    )
    assert succeed(node, "stat", "-c", "%U %a", "/var/lib/wattline").split() == ["wattline", "750"]

    around = [
        "env",
        "WATTLINE_EXPORTER=unix:///run/wattline/api.sock",
        "/opt/wattline/bin/wattline",
    ]
    succeed(node, *around, "run", "--gpus", "0", "--run-id", "probe", "--", "sleep", "2")
    (duration_s,) = metric(node, 'wattline_run_duration_seconds{run_id="probe"')
    (energy_j,) = metric(node, 'wattline_run_energy_joules_total{component="gpu"')
    assert duration_s >= 2
    assert energy_j == pytest.approx(POWER_W * duration_s, rel=0.02)

    succeed(node, *installer.remove, "wattline")
    assert node.run("systemctl", "is-active", UNIT).stdout.strip() == "inactive"
    assert "wattline" not in succeed(node, "systemctl", "list-unit-files", "--no-legend")
    node.run("rm", "-r", f"/etc/systemd/system/{UNIT}.service.d")
    assert "wattline" not in node.run("sh", "-c", f"find {LEFT}").stdout
    assert "state.sqlite" in succeed(node, "ls", "/var/lib/wattline")
    if installer.purge:
        succeed(node, *installer.purge, "wattline")
        assert node.run("ls", "/var/lib/wattline", "/etc/default/wattline-exporter").stdout == ""


def test_rpm_names_its_scripts_requirements_and_configuration(built: list[Path]) -> None:
    (package,) = built[0].glob("*.rpm")

    def asked(*options: str) -> list[str]:
        command = [require("rpm", "rpm"), "-qp", *options, str(package)]
        return subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.splitlines()

    scripts = "\n".join(asked("--scripts"))
    assert scripts.index("systemd-sysusers wattline.conf") < scripts.index(
        "disable wattline-exporter.service"
    )
    assert {"/usr/bin/python3.11", "systemd"} <= set(asked("--requires"))
    assert asked("--configfiles") == ["/etc/default/wattline-exporter"]
    assert asked("--queryformat", "%{BUILDHOST} %{LICENSE}") == ["reproducible MIT"]
    assert {
        line.split()[0] for line in asked("--queryformat", "[%{FILEUSERNAME} %{FILEGROUPNAME}\n]")
    } == {"root"}


def test_rpm_and_deb_contain_the_same_files(built: list[Path], tmp_path: Path) -> None:
    (rpm,), (deb,) = built[0].glob("*.rpm"), built[0].glob("*.deb")
    folders = [tmp_path / "rpm", tmp_path / "deb"]
    for folder in folders:
        folder.mkdir()
    unpacked = f"{require('rpm2cpio', 'rpm2cpio')} {rpm} | {require('cpio', 'cpio')} --quiet -idm"
    subprocess.run(["sh", "-c", unpacked], cwd=folders[0], check=True)
    subprocess.run(["dpkg-deb", "--extract", deb, folders[1]], check=True)
    compared = subprocess.run(
        ["diff", "-r", "--no-dereference", *folders], capture_output=True, text=True, check=False
    )
    assert compared.stdout == ""
    assert (folders[0] / "opt/wattline/bin/exporter").stat().st_mode & 0o777 == 0o755
