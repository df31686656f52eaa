"""wattline.sh without Slurm: it succeeds after each failure."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.slurm.configuration import REPOSITORY
from tests.fakes.run_api import RunApi, run_api_server

JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_CLUSTER_NAME": "lab",
    "SLURM_JOB_USER": "ada",
    "SLURM_JOB_GPUS": "0",
}
CONTEXTS = ("prolog_slurmd", "epilog_slurmd", "prolog_task", "", "other")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    subprocess.run(
        [REPOSITORY / "deploy/slurm/install.sh"],
        env={**os.environ, "DESTDIR": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    return tmp_path


def run_script(
    folder: Path, context: str, settings: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    etc = folder / "etc/slurm"
    base = f"WATTLINE_PYTHON={sys.executable}\nWATTLINE_SLURM_LOG={folder}/log\nHOME={folder}\n"
    (etc / "wattline.conf").write_text(base + settings)
    env = {"PATH": os.environ["PATH"], "SLURM_SCRIPT_CONTEXT": context, **JOB, **environ}
    return subprocess.run(
        [etc / "wattline.sh"],
        env=env,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def log(folder: Path) -> str:
    return (folder / "log").read_text()


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(
    "settings",
    [
        "WATTLINE_EXPORTER=unix:///nonexistent/api.sock\n",
        "WATTLINE_EXPORTER=unix://nonsense\n",
        "WATTLINE_PYTHON=/nonexistent/python\n",
        "WATTLINE_SLURM_LOG=/nonexistent/log\n",
        "if this is no shell\n",
    ],
)
def test_script_succeeds_whatever_is_wrong(folder: Path, context: str, settings: str) -> None:
    done = run_script(folder, context, settings)
    assert (done.returncode, done.stdout) == (0, "")


def test_missing_exporter_is_one_line_in_the_log(folder: Path) -> None:
    run_script(folder, "prolog_slurmd", "WATTLINE_EXPORTER=unix:///nonexistent/api.sock\n")
    lines = [line for line in log(folder).splitlines() if "scontrol" not in line]
    assert len(lines) == 1
    assert (
        "wattline prolog job 7: failed: cannot reach an exporter at unix:///nonexistent/api.sock"
        in lines[0]
    )


def test_exporter_that_never_answers_does_not_hold_the_job(folder: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        done = run_script(
            folder,
            "prolog_slurmd",
            f"WATTLINE_EXPORTER=http://127.0.0.1:{silent.getsockname()[1]}\n",
        )
    assert done.returncode == 0
    assert "job 7: failed: cannot reach an exporter" in log(folder)


def test_prolog_and_epilog_begin_and_end_the_run(folder: Path) -> None:
    api = RunApi(("GPU-1",))
    with run_api_server(api) as address:
        settings = f"WATTLINE_EXPORTER={address}\nWATTLINE_SLURM_LABELS=user,account\n"
        run_script(
            folder,
            "prolog_slurmd",
            settings,
            SLURM_JOB_ACCOUNT="physics",
            SLURM_JOB_PARTITION="gpu",
        )
        begun = api.begun["slurm-lab-7"]
        assert begun.labels == {"discovered": "slurm", "user": "ada", "account": "physics"}
        assert (begun.workload, begun.gpus, begun.cgroup) == ("slurm", ["0"], "slurm:7")
        run_script(folder, "epilog_slurmd", settings, SLURM_JOB_EXIT_CODE2="3:0")
        assert api.runs["slurm-lab-7"].outcome == "failed"
    assert "run slurm-lab-7 ended: failed" in log(folder)


def test_task_prolog_gives_an_address_that_the_user_can_use(folder: Path) -> None:
    (folder / "api.sock").touch()
    own, missing = f"unix://{folder}/api.sock", f"unix://{folder}/missing.sock"
    assert (
        run_script(folder, "prolog_task", f"WATTLINE_EXPORTER={own}\n").stdout
        == f"export WATTLINE_EXPORTER={own}\n"
    )
    assert run_script(folder, "prolog_task", f"WATTLINE_EXPORTER={missing}\n").stdout == ""
    assert (
        run_script(
            folder, "prolog_task", f"WATTLINE_EXPORTER={own}\n", WATTLINE_EXPORTER="http://a:1"
        ).stdout
        == ""
    )
