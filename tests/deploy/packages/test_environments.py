"""Wheel, sdist and zipapp in empty environments: each one measures a run."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.packages.commands import ROOT
from tests.daemon import Daemon, daemon
from tests.deploy.packages.conftest import needs_build
from wattline_exporter.simulation import Constant

pytestmark = needs_build
_JOB = """
import time, wattline
with wattline.run("train", gpus="0") as run:
    time.sleep(1)
print(run.run_id, run.energy_joules)
"""
_EXECUTE = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
POWER_W = 300.0
_NO_DEPENDENCIES = (
    "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions()))"
)


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("exporter"), "--simulate", "2xH200") as running:
        running.simulation().set_load(0, Constant(POWER_W))
        yield running


def _environment(folder: Path) -> Path:
    """Return the Python of an empty virtual environment."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def _run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {
        name: value for name, value in os.environ.items() if name in {"PATH", "HOME"}
    } | environment
    done = subprocess.run(
        command, env=own, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("pattern", ["*.whl", "*.tar.gz"])
def test_package_measures_a_job_without_other_packages(built, exporter, tmp_path, pattern):
    python = _environment(tmp_path / "venv")
    (package,) = built[0].glob(pattern)
    _run(python, "-m", "pip", "install", "--quiet", package)

    assert _run(python, "-c", _NO_DEPENDENCIES).stdout.split() == ["pip", "setuptools", "wattline"]
    run_id, energy_j = _run(python, "-c", _JOB, WATTLINE_EXPORTER=exporter.url).stdout.split()
    duration_s = exporter.value("wattline_run_duration_seconds", run_id=run_id)
    assert duration_s is not None
    assert duration_s >= 1
    assert float(energy_j) == pytest.approx(POWER_W * duration_s, rel=0.02)


def test_sdist_builds_the_same_wheel(built, tmp_path):
    python = _environment(tmp_path / "venv")
    (package,), (wheel,) = built[0].glob("*.tar.gz"), built[0].glob("*.whl")
    _run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, package)

    assert zipfile.ZipFile(tmp_path / wheel.name).namelist() == zipfile.ZipFile(wheel).namelist()


def test_wheel_with_locked_packages_measures(built, tmp_path):
    python = _environment(tmp_path / "venv")
    (wheel,) = built[0].glob("*.whl")
    _run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--require-hashes",
        "-r",
        ROOT / "deploy/packages/runtime.txt",
    )
    _run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel)

    program = ("-c", _EXECUTE, str(python), "-m", "wattline_exporter")
    with daemon(tmp_path, "--simulate", "2xH200", program=program, nursery=None) as exporter:
        ran = _run(
            python.with_name("wattline"),
            "run",
            "--exporter",
            exporter.url,
            "--gpus",
            "0",
            "--",
            "sleep",
            "1",
        )
    assert " J" in ran.stderr, ran.stderr


def test_zipapp_measures_and_its_runs_do_not_see_its_packages(built, tmp_path):
    program = [sys.executable, str(built[0] / "wattline.pyz")]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "SHIV_ROOT": str(tmp_path / "shiv"),
    }
    options = [
        "--idle-seconds",
        "1",
        "--state.path",
        str(tmp_path / "state"),
        "--web.listen-address",
        "127.0.0.1:0",
    ]
    with daemon(
        tmp_path, "--simulate", "2xH200", env=environment, program=program[1:], nursery=None
    ) as exporter:
        job = "import os, sys; print(os.environ.get('PYTHONPATH'), *sys.path)"
        run = ["run", "--exporter", exporter.url, "--gpus", "0", "--", sys.executable, "-c", job]
        ran = subprocess.run(
            [*program, *run],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    checked = subprocess.run(
        [*program, "check", "--simulate", "2xH200", *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("None ")
    assert "shiv" not in ran.stdout
    assert " J" in ran.stderr, ran.stderr
    assert "idle    GPU 0 draws" in checked.stdout, checked.stdout + checked.stderr
