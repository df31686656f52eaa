import json
import os

import pytest

from tests.fakes import nsys
from wattline.contract.run_files import parse_event


@pytest.fixture
def path(tmp_path):
    return f"{nsys.install_nsys(tmp_path)}:{os.environ['PATH']}"


def _calls(tmp_path):
    return [json.loads(line) for line in (tmp_path / "nsys.jsonl").read_text().splitlines()]


def test_nsys_run_keeps_report_and_tables(exporter, tmp_path, path):
    done = exporter.workloads(
        *(
            "run",
            "--nsys",
            "--out",
            str(tmp_path / "out"),
            "--run-id",
            "a",
            "sh",
            "-c",
            "echo worked; exit 3",
        ),
        PATH=path,
    )

    folder = tmp_path / "out" / "a" / "nsys"
    profile, stats = _calls(tmp_path)
    assert (done.returncode, done.stdout) == (3, "worked\n")
    assert exporter.api.only_run.outcome == "failed"
    assert profile[:3] == ["profile", "--trace=cuda,nvtx,osrt", f"--output={folder}/report"]
    assert profile[3:] == ["sh", "-c", "echo worked; exit 3"]
    assert stats == [
        "stats",
        "--format",
        "json",
        "--output",
        f"{folder}/stats",
        f"{folder}/report.nsys-rep",
    ]
    assert sorted(file.name for file in folder.iterdir()) == [
        "report.nsys-rep",
        "stats_cuda_api_sum.json",
        "stats_cuda_gpu_kern_sum.json",
    ]
    assert f"nsys: report and 2 tables are in {folder}" in done.stderr


def test_nsys_run_records_command_in_events(exporter, tmp_path, path):
    exporter.workloads(
        "run", "--nsys", "--out", str(tmp_path / "out"), "--run-id", "a", "true", PATH=path
    )

    first = (tmp_path / "out" / "a" / "events.jsonl").read_bytes().splitlines()[0]
    assert parse_event(first).command[:2] == ["nsys", "profile"]


def test_nsys_built_in_job_is_profiled(exporter, tmp_path, path):
    done = exporter.workloads(
        *(
            "job",
            "sleep",
            "--nsys",
            "--out",
            str(tmp_path / "out"),
            "--run-id",
            "a",
            "--duration",
            "0.01",
        ),
        PATH=path,
    )

    assert done.returncode == 0
    assert _calls(tmp_path)[0][-2:] == ["--duration", "0.01"]


def test_nsys_without_out_folder_is_usage_error(exporter, path):
    done = exporter.workloads("run", "--nsys", "true", PATH=path)

    assert done.returncode == 2
    assert "--nsys needs --out DIR, since its report is in the run's folder" in done.stderr
    assert exporter.api.runs == {}


def test_nsys_not_installed_fails_before_run(exporter, tmp_path):
    done = exporter.workloads(
        "run", "--nsys", "--out", str(tmp_path / "out"), "true", PATH=str(tmp_path)
    )

    assert done.returncode == 1
    assert "nsys is not on PATH" in done.stderr
    assert exporter.api.runs == {}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("profile", "nsys wrote no "),
        (
            "no tables",
            "nsys stats failed: it wrote no table; the report is kept, try again: nsys stats",
        ),
        (
            "stats",
            (
                "nsys stats failed: ERROR: the report is of a newer version; the report is kept, "
                "try "
                "again: nsys stats"
            ),
        ),
    ],
)
def test_nsys_failure_is_logged_and_keeps_exit_code(exporter, tmp_path, path, fault, message):
    done = exporter.workloads(
        *(
            "run",
            "--nsys",
            "--out",
            str(tmp_path / "my out"),
            "--run-id",
            "a",
            "sh",
            "-c",
            "exit 3",
        ),
        PATH=path,
        FAKE_NSYS_FAULT=fault,
    )

    assert done.returncode == 3
    assert message in done.stderr
    assert "Traceback" not in done.stderr
